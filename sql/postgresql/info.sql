-- name: installed
SELECT count(*) FROM (SELECT to_regclass({table_literal}) AS found) AS lookup WHERE found IS NOT NULL

-- name: info
SELECT schema_version, source, outbox_id, stream_id, deleted_through, relayed_through, leader, lease_until,
       extract(epoch FROM lease_until - clock_timestamp())::float8, server_id
FROM {info}
