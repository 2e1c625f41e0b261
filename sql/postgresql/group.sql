-- name: group_installed
SELECT count(*) FROM pg_class WHERE oid = to_regclass('outbox_group_letters')

-- name: group_session
-- Locks are taken row by row and read as they are after the wait. A member that is stopped in the
-- middle of a claim must not keep the group from the others.
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('synchronous_commit', 'on', false),
       set_config('idle_in_transaction_session_timeout', '10s', false)

-- name: group_schema
-- The letters come last: where they are, everything is.
SELECT pg_advisory_xact_lock(6027149351)
;;
CREATE TABLE IF NOT EXISTS outbox_groups (
    group_id bigint NOT NULL PRIMARY KEY,
    stream_id text NOT NULL,
    name text NOT NULL,
    settings text NOT NULL,
    head bigint NOT NULL,
    paused integer NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    created_us bigint NOT NULL,
    UNIQUE (stream_id, name)
)
;;
CREATE TABLE IF NOT EXISTS outbox_group_members (
    group_id bigint NOT NULL,
    member text NOT NULL,
    expires_us bigint NOT NULL,
    lease_us bigint NOT NULL,
    PRIMARY KEY (group_id, member)
)
;;
CREATE TABLE IF NOT EXISTS outbox_group_lots (
    group_id bigint NOT NULL,
    token bigint NOT NULL,
    events text NOT NULL,
    member text,
    tries integer NOT NULL,
    not_before_us bigint NOT NULL,
    suspect integer NOT NULL,
    reason text,
    PRIMARY KEY (group_id, token)
)
;;
CREATE TABLE IF NOT EXISTS outbox_group_letters (
    group_id bigint NOT NULL,
    event_id bigint NOT NULL,
    tries integer NOT NULL,
    reason text NOT NULL,
    event text NOT NULL,
    recorded_us bigint NOT NULL,
    PRIMARY KEY (group_id, event_id)
)

-- name: group_now
SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)

-- name: group_create
INSERT INTO outbox_groups (group_id, stream_id, name, settings, head, created_us)
VALUES (:group_id, :stream_id, :name, :settings, :head, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint))

-- name: group_find
SELECT group_id FROM outbox_groups WHERE stream_id = :stream_id AND name = :name

-- name: group_names
SELECT name FROM outbox_groups WHERE stream_id = :stream_id ORDER BY name

-- name: group_lock
SELECT settings, head, paused, skipped FROM outbox_groups WHERE group_id = :group_id FOR UPDATE

-- name: group_lots
SELECT token, events, member, tries, not_before_us, suspect, reason
FROM outbox_group_lots WHERE group_id = :group_id ORDER BY token FOR UPDATE

-- name: group_members
SELECT member, expires_us, lease_us FROM outbox_group_members WHERE group_id = :group_id ORDER BY member FOR UPDATE

-- name: group_move
UPDATE outbox_groups SET head = :head, paused = :paused, skipped = :skipped WHERE group_id = :group_id

-- name: group_lot_add
INSERT INTO outbox_group_lots (group_id, token, events, member, tries, not_before_us, suspect, reason)
VALUES (:group_id, :token, :events, :member, :tries, :not_before_us, :suspect, :reason)

-- name: group_lot_remove
DELETE FROM outbox_group_lots WHERE group_id = :group_id AND token = :token

-- name: group_ack
-- The token is the whole check: it changes whenever a lot changes hands.
DELETE FROM outbox_group_lots WHERE group_id = :group_id AND token = :token AND member IS NOT NULL

-- name: group_ack_part
UPDATE outbox_group_lots SET events = :events
WHERE group_id = :group_id AND token = :token AND member IS NOT NULL

-- name: group_member_add
INSERT INTO outbox_group_members (group_id, member, expires_us, lease_us)
VALUES (:group_id, :member, :expires_us, :lease_us)

-- name: group_member_remove
DELETE FROM outbox_group_members WHERE group_id = :group_id AND member = :member

-- name: group_beat
UPDATE outbox_group_members SET expires_us = CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) + lease_us
WHERE group_id = :group_id AND member = :member

-- name: group_letter_add
INSERT INTO outbox_group_letters (group_id, event_id, tries, reason, event, recorded_us)
VALUES (:group_id, :event_id, :tries, :reason, :event, CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint))

-- name: group_letter_remove
DELETE FROM outbox_group_letters WHERE group_id = :group_id AND event_id = :event_id

-- name: group_letters
SELECT event_id, tries, reason, event, recorded_us FROM outbox_group_letters
WHERE group_id = :group_id AND event_id > :after ORDER BY event_id LIMIT :limit_rows

-- name: group_letters_count
SELECT count(*) FROM outbox_group_letters WHERE group_id = :group_id

-- name: group_delete
DELETE FROM outbox_groups WHERE group_id = :group_id

-- name: group_delete_members
DELETE FROM outbox_group_members WHERE group_id = :group_id

-- name: group_delete_lots
DELETE FROM outbox_group_lots WHERE group_id = :group_id

-- name: group_delete_letters
DELETE FROM outbox_group_letters WHERE group_id = :group_id
