-- name: schema
-- Everything here may run again: an install that was cut short is completed by the next.
CREATE TABLE IF NOT EXISTS {info} (
    one_row         boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    schema_version  integer NOT NULL,
    source          text NOT NULL,
    outbox_id       text NOT NULL,
    stream_id       text,
    -- Every row through this ID is in the stream and may be gone from the out table.
    deleted_through bigint NOT NULL DEFAULT 0,
    leader          text,
    lease_until     timestamptz,
    server_id       text,
    installed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What the leader said last of its stream's tail: for the lag view, never a proof.
    relayed_through bigint NOT NULL DEFAULT 0
)
-- The lease is renewed every few seconds: room on the page keeps the update in place.
WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)
;;
CREATE TABLE IF NOT EXISTS {table} (
    -- CACHE 1: a session that keeps IDs for later would use them long after higher ones.
    id              bigint GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME {sequence} CACHE 1 NO CYCLE) PRIMARY KEY,
    type            text NOT NULL,
    subject         text,
    -- json, not jsonb: three times faster to read, and the text stays byte-exact.
    data            json,
    data_bytes      bytea,
    datacontenttype text,
    headers         json,
    time            timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (type <> ''),
    -- Within what consumers can say: infinity, and years of five digits, would come out as another time.
    CHECK (time >= '0001-01-01 00:00:00+00' AND time < '10000-01-01 00:00:00+00'),
    CHECK (data IS NULL OR data_bytes IS NULL)
)
-- A queue: every row is inserted and deleted once, so the table is small and its churn is
-- not. The shares of a table's size that autovacuum goes by say nothing here.
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000,
    toast.autovacuum_vacuum_cost_delay = 0)
;;
-- The sequence is read as a relation: pg_sequence_last_value would take the lock that
-- marks a writer, and would ask for a privilege of whoever reads the view.
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
-- For SQL and other languages: SELECT outbox_emit('order.placed', 'order-1', '{"total": 3}').
-- It runs as its caller, and its body is bound to this very table whatever the search_path.
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
INSERT INTO {info} (schema_version, source, outbox_id)
SELECT {schema_version}, {source_literal}, gen_random_uuid()::text
WHERE NOT EXISTS (SELECT FROM {info})

-- name: script_begin
SET client_encoding = 'UTF8'
;;
BEGIN
;;
SELECT pg_advisory_xact_lock(hashtextextended({name_literal}, 1869967480))

-- name: script_end
COMMIT

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: schema_present
SELECT count(*) FROM pg_namespace WHERE nspname = {schema_literal}

-- name: install_lock
-- By the table's name alone: the schema may be given or be the default. Ends with the transaction.
SELECT pg_advisory_xact_lock(hashtextextended({name_literal}, 1869967480))

-- name: layout
SELECT object FROM (VALUES
    ('table', to_regclass({table_literal}) IS NOT NULL),
    ('info', to_regclass({info_literal}) IS NOT NULL),
    ('lag', to_regclass({lag_literal}) IS NOT NULL),
    ('emit', to_regprocedure({emit_literal} || '(text, text, json, json, bytea, text)') IS NOT NULL)
) AS found (object, present) WHERE present

-- name: columns
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass({table_literal}) AND attnum > 0 AND NOT attisdropped

-- name: info_columns
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass({info_literal}) AND attnum > 0 AND NOT attisdropped

-- name: identity
SELECT schema_version, outbox_id, source FROM {info}

-- name: uninstall_lock
-- Waits for every writer in flight: their rows count too.
LOCK TABLE {table}, {info} IN ACCESS EXCLUSIVE MODE

-- name: uninstall_patience
SET LOCAL lock_timeout = '10s'

-- name: unrelayed
-- Every row counts: what the leader said of its tail is no proof that a row is in the stream.
SELECT count(*) FROM {table}

-- name: uninstall
DROP FUNCTION IF EXISTS {emit}(text, text, json, json, bytea, text)
;;
DROP VIEW IF EXISTS {lag}
;;
DROP TABLE IF EXISTS {table}
;;
DROP TABLE IF EXISTS {info}
