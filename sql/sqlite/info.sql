-- name: installed
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = {name_literal} COLLATE NOCASE

-- name: info
SELECT schema_version, source, outbox_id, stream_id, deleted_through, relayed_through, leader, lease_until,
       (julianday(lease_until) - julianday('now')) * 86400.0, server_id
FROM {info}
