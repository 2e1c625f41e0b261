-- The INSERT of `emit`. Bare placeholders, and no comment inside the block: only then PyMySQL
-- sends many rows in one statement.

-- name: emit
INSERT INTO {table} (type, subject, data, data_bytes, datacontenttype, headers)
VALUES (:type, :subject, :data, :data_bytes, :datacontenttype, :headers)

-- name: emit_at_time
INSERT INTO {table} (type, subject, data, data_bytes, datacontenttype, headers, time)
VALUES (:type, :subject, :data, :data_bytes, :datacontenttype, :headers, :time)
