-- name: rebase_sequence_row
-- A table without an insert so far has no row here.
INSERT INTO sqlite_sequence (name, seq)
SELECT {name_literal}, 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = {name_literal} COLLATE NOCASE)

-- name: rebase_sequence
UPDATE sqlite_sequence SET seq = max(seq, :through) WHERE name = {name_literal} COLLATE NOCASE

-- name: rebase_copy
INSERT INTO {table} (type, subject, data, data_bytes, datacontenttype, headers, time)
SELECT type, subject, data, data_bytes, datacontenttype, headers, time FROM {table} WHERE id = :id

-- name: rebase_drop
DELETE FROM {table} WHERE id = :id

-- name: rebase_server
UPDATE {info} SET server_id = :server_id

-- name: rebase_stream
UPDATE {info} SET stream_id = :stream_id
