-- name: waiting
SELECT count(*), min(id), extract(epoch FROM clock_timestamp() - min(time))::float8
FROM (SELECT id, time FROM {table} WHERE id > :tail ORDER BY id LIMIT :limit_rows) AS waiting
