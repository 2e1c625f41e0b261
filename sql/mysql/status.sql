-- name: waiting
SELECT count(*), min(id), timestampdiff(MICROSECOND, min(time), utc_timestamp(6)) / 1e6
FROM (SELECT id, time FROM {table} WHERE id > :tail ORDER BY id LIMIT :limit_rows) AS waiting
