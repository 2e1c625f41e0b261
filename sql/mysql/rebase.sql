-- name: rebase_patience
-- Whoever waits for the lock has every writer queue up behind it.
SET SESSION lock_wait_timeout = 3

-- name: rebase_sequence
ALTER TABLE {table} AUTO_INCREMENT = :next_id

-- name: rebase_copy
INSERT INTO {table} (type, subject, data, data_bytes, datacontenttype, headers, time)
SELECT type, subject, data, data_bytes, datacontenttype, headers, time FROM {table} WHERE id = :id

-- name: rebase_drop
DELETE FROM {table} WHERE id = :id

-- name: rebase_server
UPDATE {info} SET server_id = :server_id

-- name: rebase_stream
UPDATE {info} SET stream_id = :stream_id
