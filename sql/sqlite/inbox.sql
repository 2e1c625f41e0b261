-- The inbox: where each consumer stands, and the events that it could not take.

-- name: inbox_schema
-- Everything here may run again: an install that was cut short is completed by the next.
CREATE TABLE IF NOT EXISTS {info} (
    one_row        integer PRIMARY KEY DEFAULT 1 CHECK (one_row = 1),
    schema_version integer NOT NULL,
    inbox_id       text NOT NULL,
    installed_at   text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
)
;;
CREATE TABLE IF NOT EXISTS {table} (
    consumer      text NOT NULL,
    outbox_id     text NOT NULL,
    -- Every event above began_after through this ID is decided: its effects are here, or it is parked.
    reached       integer NOT NULL,
    began_after   integer NOT NULL CHECK (began_after <= reached),
    -- Counts every change of this row and of the rows parked under it: the target of compare-and-set.
    version       integer NOT NULL DEFAULT 0,
    handled       integer NOT NULL DEFAULT 0,
    failing_id    integer,
    failing_tries integer NOT NULL DEFAULT 0,
    failing_error text,
    stream_url    text NOT NULL,
    moved_at      text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (consumer, outbox_id)
)
;;
CREATE TABLE IF NOT EXISTS {parked} (
    consumer     text NOT NULL,
    outbox_id    text NOT NULL,
    id           integer NOT NULL,
    -- SHA-256 of the subject, so that it is compared as the bytes it is, as in the other databases.
    subject_hash text,
    state        text NOT NULL CHECK (state IN ('failed', 'waiting', 'due', 'dropped')),
    tries        integer NOT NULL,
    error        text,
    parked_at    text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    -- The event as JSON text: the stream may be trimmed before it is redriven. NULL once it is dropped.
    event        text,
    PRIMARY KEY (consumer, outbox_id, id),
    UNIQUE (consumer, outbox_id, subject_hash, id)
)
;;
INSERT INTO {info} (schema_version, inbox_id)
SELECT {schema_version},
       lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)
             || '-' || substr('89AB', 1 + abs(random() % 4), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))
WHERE NOT EXISTS (SELECT 1 FROM {info})

-- name: inbox_layout
SELECT CASE WHEN name = {name_literal} COLLATE NOCASE THEN 'table'
            WHEN name = {name_literal} || '_info' COLLATE NOCASE THEN 'info'
            ELSE 'parked' END
FROM sqlite_schema
WHERE type = 'table' AND name COLLATE NOCASE IN ({name_literal}, {name_literal} || '_info', {name_literal} || '_parked')

-- name: inbox_info_columns
SELECT name FROM pragma_table_info({name_literal} || '_info')

-- name: inbox_identity
SELECT schema_version, inbox_id FROM {info}

-- name: inbox_begin
INSERT INTO {table} (consumer, outbox_id, reached, began_after, stream_url)
VALUES (:consumer, :outbox_id, :began_after, :began_after, :stream_url)
ON CONFLICT (consumer, outbox_id) DO NOTHING

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
       failing_id = NULL, failing_tries = 0, failing_error = NULL, moved_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
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
UPDATE {parked} SET state = 'failed', tries = tries + :tries, error = :error, parked_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
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
       count(*) FILTER (WHERE parked.state = 'failed'),
       count(*) FILTER (WHERE parked.state = 'waiting'),
       count(*) FILTER (WHERE parked.state = 'due'),
       count(*) FILTER (WHERE parked.state = 'dropped'),
       min(parked.parked_at) FILTER (WHERE parked.state <> 'dropped')
FROM {table} AS inbox
LEFT JOIN {parked} AS parked ON parked.consumer = inbox.consumer AND parked.outbox_id = inbox.outbox_id
WHERE :consumer IS NULL OR inbox.consumer = :consumer
GROUP BY inbox.consumer, inbox.outbox_id
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
