-- name: schema
CREATE TABLE {table} (
    id              bigint GENERATED ALWAYS AS IDENTITY (CACHE 1 NO CYCLE) PRIMARY KEY,
    type            text NOT NULL,
    subject         text,
    -- json, not jsonb: three times faster to read, and the text stays byte-exact.
    data            json,
    data_bytes      bytea,
    datacontenttype text,
    headers         json,
    time            timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (type <> ''),
    CHECK (data IS NULL OR data_bytes IS NULL)
)
;;
CREATE TABLE {info} (
    one_row         boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    schema_version  integer NOT NULL,
    source          text NOT NULL,
    outbox_id       text NOT NULL,
    stream_id       text,
    -- Every row through this ID is in the stream and may be gone from the out table.
    deleted_through bigint NOT NULL DEFAULT 0,
    -- What the leader said last of its stream's tail: for the lag view, never a proof.
    relayed_through bigint NOT NULL DEFAULT 0,
    leader          text,
    lease_until     timestamptz,
    server_id       text,
    installed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
)
;;
ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0)
;;
ALTER TABLE {info} SET (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)
