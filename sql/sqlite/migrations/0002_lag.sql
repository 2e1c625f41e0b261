-- The relay's position for the lag view, and the view itself.
ALTER TABLE {info} ADD COLUMN relayed_through integer NOT NULL DEFAULT 0
;;
UPDATE {info} SET relayed_through = deleted_through
;;
CREATE VIEW IF NOT EXISTS {lag} AS
SELECT count(event.id) AS rows_waiting, min(event.time) AS oldest_waiting_time,
       coalesce(max((julianday('now') - julianday(min(event.time))) * 86400.0, 0.0), 0.0) AS lag_seconds,
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = {name_literal} COLLATE NOCASE), 0) AS last_id_drawn,
       info.relayed_through, info.deleted_through, info.leader, info.lease_until
FROM {info} AS info
LEFT JOIN {table} AS event ON event.id > max(info.relayed_through, info.deleted_through)
GROUP BY info.one_row
;;
UPDATE {info} SET schema_version = 2
