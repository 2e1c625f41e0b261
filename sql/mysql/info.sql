-- name: installed
SELECT count(*) FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}

-- name: info
SELECT schema_version, source, outbox_id, stream_id, deleted_through, relayed_through, leader, lease_until,
       timestampdiff(MICROSECOND, utc_timestamp(6), lease_until) / 1e6, server_id
FROM {info}
