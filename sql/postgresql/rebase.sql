-- name: rebase_patience
-- Whoever waits for the lock has every writer queue up behind it.
SET LOCAL lock_timeout = '3s'

-- name: rebase_lock
-- Keeps writers out until the end of the transaction, readers not.
LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE

-- name: rebase_sequence
SELECT setval({sequence_literal}::regclass, greatest(:through, last_value)) FROM {sequence}

-- name: rebase_copy
INSERT INTO {table} (type, subject, data, data_bytes, datacontenttype, headers, time)
SELECT type, subject, data, data_bytes, datacontenttype, headers, time FROM {table} WHERE id = :id

-- name: rebase_drop
DELETE FROM {table} WHERE id = :id

-- name: rebase_server
UPDATE {info} SET server_id = :server_id

-- name: rebase_stream
UPDATE {info} SET stream_id = :stream_id
