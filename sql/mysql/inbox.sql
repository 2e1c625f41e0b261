-- The inbox: where each consumer stands, and the events that it could not take.

-- name: inbox_schema
-- Everything here may run again: MySQL commits each statement by itself. The row of {info} comes last.
CREATE TABLE IF NOT EXISTS {table} (
    consumer      varchar(200) NOT NULL,
    outbox_id     varchar(64) NOT NULL,
    -- Every event above began_after through this ID is decided: its effects are here, or it is parked.
    reached       bigint NOT NULL,
    began_after   bigint NOT NULL,
    -- Counts every change of this row and of the rows parked under it: the target of compare-and-set.
    version       bigint NOT NULL DEFAULT 0,
    handled       bigint NOT NULL DEFAULT 0,
    failing_id    bigint,
    failing_tries integer NOT NULL DEFAULT 0,
    failing_error text,
    stream_url    text NOT NULL,
    moved_at      datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    PRIMARY KEY (consumer, outbox_id),
    CHECK (began_after <= reached)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
CREATE TABLE IF NOT EXISTS {parked} (
    consumer     varchar(200) NOT NULL,
    outbox_id    varchar(64) NOT NULL,
    id           bigint NOT NULL,
    -- SHA-256 of the subject, so that it is compared as the bytes it is: here 'a' equals 'a '.
    subject_hash char(64),
    state        varchar(16) NOT NULL CHECK (state IN ('failed', 'waiting', 'due', 'dropped')),
    tries        integer NOT NULL,
    error        text,
    parked_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    -- The event as JSON text: the stream may be trimmed before it is redriven. NULL once it is dropped.
    event        longtext,
    PRIMARY KEY (consumer, outbox_id, id),
    UNIQUE KEY (consumer, outbox_id, subject_hash, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
CREATE TABLE IF NOT EXISTS {info} (
    one_row        tinyint NOT NULL DEFAULT 1 PRIMARY KEY CHECK (one_row = 1),
    schema_version integer NOT NULL,
    inbox_id       varchar(36) NOT NULL,
    installed_at   datetime(6) NOT NULL DEFAULT (utc_timestamp(6))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
-- Through a variable: replication by statement would draw another uuid() on each replica.
SET @inbox_id = uuid()
;;
INSERT INTO {info} (schema_version, inbox_id)
SELECT {schema_version}, @inbox_id FROM dual WHERE NOT EXISTS (SELECT 1 FROM {info} AS present)

-- name: inbox_layout
-- One equality each: the server then looks the very name up, by its own rule for case.
SELECT 'table' FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}
UNION ALL
SELECT 'info' FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = concat({name_literal}, '_info')
UNION ALL
SELECT 'parked' FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = concat({name_literal}, '_parked')

-- name: inbox_info_columns
SELECT column_name FROM information_schema.columns
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = concat({name_literal}, '_info')

-- name: inbox_identity
SELECT schema_version, inbox_id FROM {info}

-- name: inbox_begin
INSERT INTO {table} (consumer, outbox_id, reached, began_after, stream_url)
VALUES (:consumer, :outbox_id, :began_after, :began_after, :stream_url)
ON DUPLICATE KEY UPDATE consumer = consumer

-- name: inbox_others_at
SELECT outbox_id, reached FROM {table}
WHERE consumer = :consumer AND stream_url = :stream_url AND outbox_id <> :outbox_id
ORDER BY outbox_id

-- name: inbox_state
SELECT reached, began_after, version, failing_id, failing_tries FROM {table}
WHERE consumer = :consumer AND outbox_id = :outbox_id

-- name: inbox_claim
-- Odd from here to the end of the transaction: what is committed odd was committed by a handler.
UPDATE {table} SET version = version + 1
WHERE consumer = :consumer AND outbox_id = :outbox_id AND version = :version

-- name: inbox_touch
UPDATE {table} SET version = version + 2 WHERE consumer = :consumer AND outbox_id = :outbox_id

-- name: inbox_move
-- The version moves too: MySQL's drivers may count only rows that were really changed.
UPDATE {table} SET version = version + 1, reached = :reached, handled = handled + :handled, stream_url = :stream_url,
       failing_id = NULL, failing_tries = 0, failing_error = NULL, moved_at = utc_timestamp(6)
WHERE consumer = :consumer AND outbox_id = :outbox_id AND version = :version AND reached <= :reached

-- name: inbox_failing
UPDATE {table} SET version = version + 1, failing_id = :id, failing_tries = :tries, failing_error = :error
WHERE consumer = :consumer AND outbox_id = :outbox_id

-- name: inbox_resume
UPDATE {table} SET version = version + 1, reached = :reached
WHERE consumer = :consumer AND outbox_id = :outbox_id AND version = :version AND reached <= :reached

-- name: inbox_savepoint
SAVEPOINT outbox_inbox

-- name: inbox_return
ROLLBACK TO SAVEPOINT outbox_inbox

-- name: inbox_release
RELEASE SAVEPOINT outbox_inbox

-- name: inbox_park
INSERT INTO {parked} (consumer, outbox_id, id, subject_hash, state, tries, error, event)
VALUES (:consumer, :outbox_id, :id, :subject_hash, :state, :tries, :error, :event)

-- name: inbox_park_again
UPDATE {parked} SET state = 'failed', tries = tries + :tries, error = :error, parked_at = utc_timestamp(6)
WHERE consumer = :consumer AND outbox_id = :outbox_id AND id = :id AND state <> 'dropped'

-- name: inbox_unpark
DELETE FROM {parked} WHERE consumer = :consumer AND outbox_id = :outbox_id AND id = :id AND state <> 'dropped'

-- name: inbox_held
SELECT subject_hash, count(*) FROM {parked}
WHERE consumer = :consumer AND outbox_id = :outbox_id AND state <> 'dropped'
GROUP BY subject_hash

-- name: inbox_ready
-- In ID order, and nothing of a subject that has a failed event below it. A subject of NULL is
-- equal to nothing: such events stand alone.
SELECT id, event FROM {parked} AS mine
WHERE consumer = :consumer AND outbox_id = :outbox_id AND state IN ('due', 'waiting')
  AND NOT EXISTS (
      SELECT 1 FROM {parked} AS lower_one
      WHERE lower_one.consumer = mine.consumer AND lower_one.outbox_id = mine.outbox_id
        AND lower_one.subject_hash = mine.subject_hash AND lower_one.id < mine.id AND lower_one.state = 'failed')
ORDER BY id LIMIT :events

-- name: inbox_standings
SELECT inbox.consumer, inbox.outbox_id, inbox.stream_url, inbox.began_after, inbox.reached, inbox.handled, inbox.moved_at,
       inbox.failing_id, inbox.failing_tries, inbox.failing_error,
       coalesce(sum(parked.state = 'failed'), 0),
       coalesce(sum(parked.state = 'waiting'), 0),
       coalesce(sum(parked.state = 'due'), 0),
       coalesce(sum(parked.state = 'dropped'), 0),
       min(CASE WHEN parked.state <> 'dropped' THEN parked.parked_at END)
FROM {table} AS inbox
LEFT JOIN {parked} AS parked ON parked.consumer = inbox.consumer AND parked.outbox_id = inbox.outbox_id
WHERE :consumer IS NULL OR inbox.consumer = :consumer
GROUP BY inbox.consumer, inbox.outbox_id, inbox.stream_url, inbox.began_after, inbox.reached, inbox.handled, inbox.moved_at,
         inbox.failing_id, inbox.failing_tries, inbox.failing_error
ORDER BY inbox.consumer, inbox.outbox_id

-- name: inbox_parked
SELECT consumer, outbox_id, id, state, tries, error, parked_at, event FROM {parked}
WHERE consumer = :consumer AND (:outbox_id IS NULL OR outbox_id = :outbox_id)
  AND (:id IS NULL OR id = :id)
  AND (:subject_hash IS NULL OR subject_hash = :subject_hash)
  AND (state <> 'dropped' OR :with_dropped = 1)
ORDER BY outbox_id, id LIMIT :events

-- name: inbox_redrive
UPDATE {parked} SET state = 'due'
WHERE consumer = :consumer AND outbox_id = :outbox_id AND state = 'failed'
  AND (:id IS NULL OR id = :id)
  AND (:subject_hash IS NULL OR subject_hash = :subject_hash)

-- name: inbox_drop
UPDATE {parked} SET state = 'dropped', event = NULL
WHERE consumer = :consumer AND outbox_id = :outbox_id AND state <> 'dropped'
  AND (:id IS NULL OR id = :id)
  AND (:subject_hash IS NULL OR subject_hash = :subject_hash)

-- name: inbox_forget_parked
DELETE FROM {parked} WHERE consumer = :consumer AND outbox_id = :outbox_id

-- name: inbox_forget
DELETE FROM {table} WHERE consumer = :consumer AND outbox_id = :outbox_id
