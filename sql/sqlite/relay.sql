-- name: server_id
-- A SQLite file has no identity of its own; its content is checked instead.
SELECT 'sqlite'

-- name: standing
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = {name_literal} COLLATE NOCASE), 0), (SELECT deleted_through FROM {info})

-- name: read
SELECT id, type, subject, data, data_bytes, datacontenttype, headers, time, length(coalesce(data, data_bytes, ''))
FROM {table} WHERE id > :after AND id <= :through ORDER BY id LIMIT :limit_rows

-- name: read_size
SELECT count(*), coalesce(sum(octets), 0) FROM (
    SELECT length(CAST(coalesce(data, data_bytes, '') AS blob)) + length(coalesce(headers, '')) AS octets
    FROM {table} WHERE id > :after AND id <= :through ORDER BY id LIMIT :limit_rows)

-- name: late_id
SELECT min(id) FROM {table} WHERE id <= :deleted_through

-- name: lease_take
UPDATE {info} SET leader = :leader, lease_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', :seconds || ' seconds')
WHERE leader IS NULL OR leader = :leader OR lease_until IS NULL OR lease_until < strftime('%Y-%m-%dT%H:%M:%fZ', 'now')

-- name: lease_renew
UPDATE {info} SET lease_until = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', :seconds || ' seconds'),
       relayed_through = max(relayed_through, :relayed_through)
WHERE leader = :leader

-- name: lease_release
UPDATE {info} SET leader = NULL, lease_until = NULL, relayed_through = max(relayed_through, :relayed_through)
WHERE leader = :leader

-- name: bind_stream
UPDATE {info} SET stream_id = :stream_id WHERE stream_id IS NULL OR stream_id = :stream_id

-- name: remember_server
UPDATE {info} SET server_id = :server_id WHERE server_id IS NULL OR server_id = :server_id

-- name: clean_lock
SELECT deleted_through FROM {info}

-- name: clean_digest
-- IDs as distances from the range's start: a sum of whole ones may not fit 64 bits.
SELECT count(*), coalesce(sum(id - :after), 0), coalesce(sum(length(coalesce(data, data_bytes, ''))), 0)
FROM {table} WHERE id > :after AND id <= :through

-- name: clean_delete
DELETE FROM {table} WHERE id > :after AND id <= :through

-- name: clean_move
UPDATE {info} SET deleted_through = :through
