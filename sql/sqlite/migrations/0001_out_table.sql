-- The first layout: an out table and what it remembers of itself.
CREATE TABLE {info} (
    one_row         integer PRIMARY KEY DEFAULT 1 CHECK (one_row = 1),
    schema_version  integer NOT NULL,
    source          text NOT NULL,
    outbox_id       text NOT NULL,
    stream_id       text,
    deleted_through integer NOT NULL DEFAULT 0,
    leader          text,
    lease_until     text,
    server_id       text,
    installed_at    text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
)
;;
CREATE TABLE {table} (
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
CREATE TRIGGER {immutable} BEFORE UPDATE ON {table}
BEGIN
    SELECT RAISE(ABORT, 'rows of an out table are never changed: emit another event');
END
;;
INSERT INTO {info} (schema_version, source, outbox_id)
SELECT 1, {source_literal},
       lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)
             || '-' || substr('89AB', 1 + abs(random() % 4), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))
