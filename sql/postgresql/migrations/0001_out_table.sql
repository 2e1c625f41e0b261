-- The first layout: an out table and what it remembers of itself.
CREATE TABLE {info} (
    one_row         boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    schema_version  integer NOT NULL,
    source          text NOT NULL,
    outbox_id       text NOT NULL,
    stream_id       text,
    deleted_through bigint NOT NULL DEFAULT 0,
    leader          text,
    lease_until     timestamptz,
    server_id       text,
    installed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
)
;;
CREATE TABLE {table} (
    id              bigint GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME {sequence} CACHE 1 NO CYCLE) PRIMARY KEY,
    type            text NOT NULL,
    subject         text,
    data            json,
    data_bytes      bytea,
    datacontenttype text,
    headers         json,
    time            timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (type <> ''),
    CHECK (time >= '0001-01-01 00:00:00+00' AND time < '10000-01-01 00:00:00+00'),
    CHECK (data IS NULL OR data_bytes IS NULL)
)
;;
INSERT INTO {info} (schema_version, source, outbox_id) VALUES (1, {source_literal}, gen_random_uuid()::text)
