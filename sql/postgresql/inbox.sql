-- The inbox: where each consumer stands, and the events that it could not take.

-- name: inbox_schema
-- Everything here may run again: an install that was cut short is completed by the next.
CREATE TABLE IF NOT EXISTS {info} (
    one_row        boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    schema_version integer NOT NULL,
    inbox_id       text NOT NULL,
    installed_at   timestamptz NOT NULL DEFAULT clock_timestamp()
)
;;
CREATE TABLE IF NOT EXISTS {table} (
    consumer      text NOT NULL,
    outbox_id     text NOT NULL,
    -- Every event above began_after through this ID is decided: its effects are here, or it is parked.
    reached       bigint NOT NULL,
    began_after   bigint NOT NULL CHECK (began_after <= reached),
    -- Counts every change of this row and of the rows parked under it: the target of compare-and-set.
    version       bigint NOT NULL DEFAULT 0,
    handled       bigint NOT NULL DEFAULT 0,
    failing_id    bigint,
    failing_tries integer NOT NULL DEFAULT 0,
    failing_error text,
    stream_url    text NOT NULL,
    moved_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, outbox_id)
)
-- Updated with every transaction of the consumer: room on the page keeps the update in place.
WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)
;;
CREATE TABLE IF NOT EXISTS {parked} (
    consumer     text NOT NULL,
    outbox_id    text NOT NULL,
    id           bigint NOT NULL,
    -- SHA-256 of the subject, so that it is compared as the bytes it is, whatever the collation.
    subject_hash char(64),
    state        text NOT NULL CHECK (state IN ('failed', 'waiting', 'due', 'dropped')),
    tries        integer NOT NULL,
    error        text,
    parked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The event as JSON text: the stream may be trimmed before it is redriven. NULL once it is dropped.
    event        text,
    PRIMARY KEY (consumer, outbox_id, id),
    UNIQUE (consumer, outbox_id, subject_hash, id)
)
;;
INSERT INTO {info} (schema_version, inbox_id)
SELECT {schema_version}, gen_random_uuid()::text WHERE NOT EXISTS (SELECT FROM {info})

-- name: inbox_layout
SELECT object FROM (VALUES
    ('table', to_regclass({table_literal}) IS NOT NULL),
    ('info', to_regclass({info_literal}) IS NOT NULL),
    ('parked', to_regclass({parked_literal}) IS NOT NULL)
) AS found (object, present) WHERE present

-- name: inbox_info_columns
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass({info_literal}) AND attnum > 0 AND NOT attisdropped

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
       failing_id = NULL, failing_tries = 0, failing_error = NULL, moved_at = clock_timestamp()
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
UPDATE {parked} SET state = 'failed', tries = tries + :tries, error = :error, parked_at = clock_timestamp()
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
      SELECT FROM {parked} AS lower_one
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
WHERE CAST(:consumer AS text) IS NULL OR inbox.consumer = CAST(:consumer AS text)
GROUP BY inbox.consumer, inbox.outbox_id
ORDER BY inbox.consumer, inbox.outbox_id

-- name: inbox_parked
SELECT consumer, outbox_id, id, state, tries, error, parked_at, event FROM {parked}
WHERE consumer = :consumer AND (CAST(:outbox_id AS text) IS NULL OR outbox_id = CAST(:outbox_id AS text))
  AND (CAST(:id AS bigint) IS NULL OR id = CAST(:id AS bigint))
  AND (CAST(:subject_hash AS text) IS NULL OR subject_hash = CAST(:subject_hash AS text))
  AND (state <> 'dropped' OR CAST(:with_dropped AS integer) = 1)
ORDER BY outbox_id, id LIMIT :events

-- name: inbox_redrive
UPDATE {parked} SET state = 'due'
WHERE consumer = :consumer AND outbox_id = :outbox_id AND state = 'failed'
  AND (CAST(:id AS bigint) IS NULL OR id = CAST(:id AS bigint))
  AND (CAST(:subject_hash AS text) IS NULL OR subject_hash = CAST(:subject_hash AS text))

-- name: inbox_drop
UPDATE {parked} SET state = 'dropped', event = NULL
WHERE consumer = :consumer AND outbox_id = :outbox_id AND state <> 'dropped'
  AND (CAST(:id AS bigint) IS NULL OR id = CAST(:id AS bigint))
  AND (CAST(:subject_hash AS text) IS NULL OR subject_hash = CAST(:subject_hash AS text))

-- name: inbox_forget_parked
DELETE FROM {parked} WHERE consumer = :consumer AND outbox_id = :outbox_id

-- name: inbox_forget
DELETE FROM {table} WHERE consumer = :consumer AND outbox_id = :outbox_id
