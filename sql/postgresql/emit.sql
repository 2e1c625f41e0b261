-- The INSERT of `emit`. The JSON goes in by way of text: a driver that binds VARCHAR, or that
-- has its own codec for json, must neither fail nor encode the text a second time.

-- name: emit
INSERT INTO {table} (type, subject, data, data_bytes, datacontenttype, headers)
VALUES (:type, :subject, CAST(CAST(:data AS text) AS json), :data_bytes, :datacontenttype,
        CAST(CAST(:headers AS text) AS json))

-- name: emit_at_time
INSERT INTO {table} (type, subject, data, data_bytes, datacontenttype, headers, time)
VALUES (:type, :subject, CAST(CAST(:data AS text) AS json), :data_bytes, :datacontenttype,
        CAST(CAST(:headers AS text) AS json), :time)
