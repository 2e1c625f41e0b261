-- name: schema
CREATE TABLE {table} (
    -- AUTOINCREMENT: without it SQLite gives out the ID of a deleted last row again.
    id              integer PRIMARY KEY AUTOINCREMENT,
    type            text NOT NULL CHECK (type <> ''),
    subject         text,
    data            text,
    data_bytes      blob,
    datacontenttype text,
    headers         text,
    time            text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    CHECK (data IS NULL OR data_bytes IS NULL)
)
;;
CREATE TABLE {info} (
    one_row         integer PRIMARY KEY DEFAULT 1 CHECK (one_row = 1),
    schema_version  integer NOT NULL,
    source          text NOT NULL,
    outbox_id       text NOT NULL,
    stream_id       text,
    -- Every row through this ID is in the stream and may be gone from the out table.
    deleted_through integer NOT NULL DEFAULT 0,
    -- What the leader said last of its stream's tail: for the lag view, never a proof.
    relayed_through integer NOT NULL DEFAULT 0,
    leader          text,
    lease_until     text,
    server_id       text,
    installed_at    text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
)
;;
CREATE TRIGGER {immutable} BEFORE UPDATE ON {table}
BEGIN
    SELECT RAISE(ABORT, 'rows of an out table are never changed: emit another event');
END
