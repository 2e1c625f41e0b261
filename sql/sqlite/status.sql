-- name: waiting
SELECT count(*), min(id), (julianday('now') - julianday(min(time))) * 86400.0
FROM (SELECT id, time FROM {table} WHERE id > :tail ORDER BY id LIMIT :limit_rows)
