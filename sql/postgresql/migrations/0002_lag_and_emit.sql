-- The relay's position for the lag view, the view itself, an emit function, and autovacuum
-- settings fit for a queue.
ALTER TABLE {info} ADD COLUMN relayed_through bigint NOT NULL DEFAULT 0
;;
UPDATE {info} SET relayed_through = deleted_through
;;
ALTER TABLE {info} SET (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)
;;
ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0)
;;
CREATE OR REPLACE VIEW {lag} AS
SELECT waiting.rows_waiting, waiting.oldest_waiting_time,
       coalesce(greatest(extract(epoch FROM clock_timestamp() - waiting.oldest_waiting_time), 0), 0)::float8 AS lag_seconds,
       CASE WHEN sequence.is_called THEN sequence.last_value ELSE sequence.last_value - 1 END AS last_id_drawn,
       info.relayed_through, info.deleted_through, info.leader, info.lease_until
FROM {info} AS info
CROSS JOIN {sequence} AS sequence
CROSS JOIN LATERAL (
    SELECT count(*) AS rows_waiting, min(event."time") AS oldest_waiting_time
    FROM {table} AS event WHERE event.id > greatest(info.relayed_through, info.deleted_through)) AS waiting
;;
CREATE OR REPLACE FUNCTION {emit}(
    type text, subject text DEFAULT NULL, data json DEFAULT NULL, headers json DEFAULT NULL,
    data_bytes bytea DEFAULT NULL, datacontenttype text DEFAULT NULL
) RETURNS void LANGUAGE sql VOLATILE SECURITY INVOKER
BEGIN ATOMIC
    INSERT INTO {table} (type, subject, data, headers, data_bytes, datacontenttype) VALUES ($1, $2, $3, $4, $5, $6);
END
;;
REVOKE ALL ON FUNCTION {emit}(text, text, json, json, bytea, text) FROM PUBLIC
;;
UPDATE {info} SET schema_version = 2
