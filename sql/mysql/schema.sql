-- name: schema
-- Everything here may run again: MySQL commits each statement by itself, and an install
-- that was killed in between is completed by the next. The row of {info} comes last.
CREATE TABLE IF NOT EXISTS {info} (
    one_row         tinyint NOT NULL DEFAULT 1 PRIMARY KEY CHECK (one_row = 1),
    schema_version  integer NOT NULL,
    source          varchar(1024) NOT NULL,
    outbox_id       varchar(36) NOT NULL,
    stream_id       varchar(36),
    -- Every row through this ID is in the stream and may be gone from the out table.
    deleted_through bigint NOT NULL DEFAULT 0,
    leader          varchar(255),
    lease_until     datetime(6),
    server_id       varchar(255),
    installed_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    -- What the leader said last of its stream's tail: for the lag view, never a proof.
    relayed_through bigint NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
CREATE TABLE IF NOT EXISTS {table} (
    id              bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    type            varchar(255) NOT NULL,
    subject         varchar(1024),
    -- Text, not JSON: it stays byte-exact, and MariaDB's JSON refuses 32 levels of nesting.
    data            longtext,
    data_bytes      longblob,
    datacontenttype varchar(255),
    headers         longtext,
    time            datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    CHECK (type <> ''),
    -- Without NO_ZERO_DATE a session may write days that no calendar has.
    CHECK (month(time) > 0 AND dayofmonth(time) > 0),
    CHECK (data IS NULL OR data_bytes IS NULL)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
-- last_id_drawn: MySQL may answer with statistics up to information_schema_stats_expiry old.
CREATE OR REPLACE SQL SECURITY DEFINER VIEW {lag} AS
SELECT count(event.id) AS rows_waiting, min(event.time) AS oldest_waiting_time,
       coalesce(greatest(timestampdiff(MICROSECOND, min(event.time), utc_timestamp(6)) / 1e6, 0), 0) AS lag_seconds,
       CAST(greatest(coalesce((SELECT auto_increment - 1 FROM information_schema.tables
                          WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}), 0),
                coalesce(max(event.id), 0), info.relayed_through, info.deleted_through) AS signed) AS last_id_drawn,
       info.relayed_through, info.deleted_through, info.leader, info.lease_until
FROM {info} AS info
LEFT JOIN {table} AS event ON event.id > greatest(info.relayed_through, info.deleted_through)
GROUP BY info.relayed_through, info.deleted_through, info.leader, info.lease_until
;;
DROP PROCEDURE IF EXISTS {emit}
;;
-- For SQL and other languages: CALL outbox_emit('order.placed', 'order-1', '{"total": 3}', NULL).
-- It runs as its caller. Binary data, and JSON deeper than the server's own functions go
-- (32 levels on MariaDB, 100 on MySQL), are for a plain INSERT.
CREATE PROCEDURE {emit}(
    IN event_type varchar(255), IN event_subject varchar(1024), IN event_data longtext, IN event_headers longtext
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF NOT coalesce(json_valid(event_data), 1) OR NOT coalesce(json_valid(event_headers), 1) THEN
        SIGNAL SQLSTATE '22032' SET MESSAGE_TEXT = 'data and headers of an event must be valid JSON or NULL';
    END IF;
    INSERT INTO {table} (type, subject, data, headers) VALUES (event_type, event_subject, event_data, event_headers);
END
;;
-- Through a variable: replication by statement would draw another uuid() on each replica.
SET @outbox_id = uuid()
;;
INSERT INTO {info} (schema_version, source, outbox_id)
SELECT {schema_version}, {source_literal}, @outbox_id FROM dual WHERE NOT EXISTS (SELECT 1 FROM {info} AS present)

-- name: script_begin
SET NAMES utf8mb4
;;
SET SESSION sql_mode = concat(@@sql_mode, ',STRICT_ALL_TABLES')

-- name: script_end

-- name: create_schema
CREATE DATABASE IF NOT EXISTS {schema}

-- name: schema_present
SELECT count(*) FROM information_schema.schemata WHERE schema_name = {schema_literal}

-- name: install_lock
SELECT get_lock(concat('outbox.', sha1(concat(coalesce({schema_literal}, database(), ''), '.', {name_literal}))), 60)

-- name: install_unlock
SELECT release_lock(concat('outbox.', sha1(concat(coalesce({schema_literal}, database(), ''), '.', {name_literal}))))

-- name: layout
-- One equality each: the server then looks the very name up, by its own rule for case.
SELECT 'table' FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}
UNION ALL
SELECT 'info' FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = concat({name_literal}, '_info')
UNION ALL
SELECT 'lag' FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = concat({name_literal}, '_lag')
UNION ALL
SELECT 'emit' FROM information_schema.routines
WHERE routine_schema = coalesce({schema_literal}, database()) AND routine_name = concat({name_literal}, '_emit')

-- name: columns
SELECT column_name FROM information_schema.columns
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}

-- name: info_columns
SELECT column_name FROM information_schema.columns
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = concat({name_literal}, '_info')

-- name: identity
SELECT schema_version, outbox_id, source FROM {info}

-- name: uninstall_patience
SET SESSION lock_wait_timeout = 10

-- name: uninstall_lock
-- Waits for every writer in flight: their rows count too.
LOCK TABLES {table} WRITE, {info} WRITE, {info} AS position WRITE

-- name: unrelayed
-- Every row counts: what the leader said of its tail is no proof that a row is in the stream.
SELECT count(*) FROM {table}

-- name: uninstall
-- The out table before the info table: what is left of a killed uninstall is never taken
-- for an outbox.
DROP TABLE IF EXISTS {table}
;;
DROP TABLE IF EXISTS {info}
;;
UNLOCK TABLES
;;
DROP PROCEDURE IF EXISTS {emit}
;;
DROP VIEW IF EXISTS {lag}

-- name: uninstall_release
UNLOCK TABLES
