-- name: schema
CREATE TABLE IF NOT EXISTS {info} (
    one_row         integer PRIMARY KEY DEFAULT 1 CHECK (one_row = 1),
    schema_version  integer NOT NULL,
    source          text NOT NULL,
    outbox_id       text NOT NULL,
    stream_id       text,
    -- Every row through this ID is in the stream and may be gone from the out table.
    deleted_through integer NOT NULL DEFAULT 0,
    leader          text,
    lease_until     text,
    server_id       text,
    installed_at    text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    -- What the leader said last of its stream's tail: for the lag view, never a proof.
    relayed_through integer NOT NULL DEFAULT 0
)
;;
-- There is no emit function: SQLite has no stored procedures. A plain INSERT is the way:
-- INSERT INTO outbox (type, subject, data) VALUES ('order.placed', 'order-1', '{"total": 3}')
CREATE TABLE IF NOT EXISTS {table} (
    -- AUTOINCREMENT: without it SQLite gives out the ID of a deleted last row again.
    id              integer PRIMARY KEY AUTOINCREMENT,
    -- SQLite takes any value in any column: the checks keep out what the relay could not read.
    type            text NOT NULL CHECK (type <> '' AND typeof(type) = 'text'),
    subject         text CHECK (typeof(subject) IN ('text', 'null')),
    data            text CHECK (data IS NULL OR (typeof(data) = 'text' AND json_valid(data))),
    data_bytes      blob CHECK (typeof(data_bytes) IN ('blob', 'null')),
    datacontenttype text CHECK (typeof(datacontenttype) IN ('text', 'null')),
    headers         text CHECK (headers IS NULL OR (typeof(headers) = 'text' AND json_valid(headers))),
    -- RFC 3339 in UTC, to the microsecond where the writer gives it. Not 30 February, not 24:00.
    time            text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
                    CHECK (time GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]*Z'
                           AND strftime('%Y-%m-%dT%H:%M:%S', substr(time, 1, 19), '+0 days') IS substr(time, 1, 19)
                           AND (length(time) = 20 OR length(time) BETWEEN 22 AND 27 AND substr(time, 20, 1) = '.'
                                AND substr(time, 21, length(time) - 21) NOT GLOB '*[^0-9]*')),
    CHECK (data IS NULL OR data_bytes IS NULL)
)
;;
CREATE TRIGGER IF NOT EXISTS {immutable} BEFORE UPDATE ON {table}
BEGIN
    SELECT RAISE(ABORT, 'rows of an out table are never changed: emit another event');
END
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
-- A random UUID (version 4), made by the database, so that a script that is run on two
-- databases makes two outboxes.
INSERT INTO {info} (schema_version, source, outbox_id)
SELECT {schema_version}, {source_literal},
       lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)
             || '-' || substr('89AB', 1 + abs(random() % 4), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))
WHERE NOT EXISTS (SELECT 1 FROM {info})

-- name: script_begin
BEGIN IMMEDIATE

-- name: script_end
COMMIT

-- name: layout
SELECT CASE WHEN name = {name_literal} COLLATE NOCASE THEN 'table'
            WHEN name = {name_literal} || '_info' COLLATE NOCASE THEN 'info'
            WHEN name = {name_literal} || '_lag' COLLATE NOCASE THEN 'lag'
            ELSE 'immutable' END
FROM sqlite_schema
WHERE name COLLATE NOCASE IN ({name_literal}, {name_literal} || '_info', {name_literal} || '_lag', {name_literal} || '_immutable')

-- name: columns
SELECT name FROM pragma_table_info({name_literal})

-- name: info_columns
SELECT name FROM pragma_table_info({name_literal} || '_info')

-- name: identity
SELECT schema_version, outbox_id, source FROM {info}

-- name: unrelayed
-- Every row counts: what the leader said of its tail is no proof that a row is in the stream.
SELECT count(*) FROM {table}

-- name: uninstall
DROP VIEW IF EXISTS {lag}
;;
DROP TABLE IF EXISTS {table}
;;
DROP TABLE IF EXISTS {info}
