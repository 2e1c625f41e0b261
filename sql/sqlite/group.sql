-- name: group_installed
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'outbox_group_letters'

-- name: group_session
-- A commit is on the disk before anybody is told: the group reports its position to the stream,
-- and retention believes it.
PRAGMA journal_mode = WAL
;;
PRAGMA synchronous = FULL

-- name: group_schema
-- The letters come last: where they are, everything is.
CREATE TABLE IF NOT EXISTS outbox_groups (
    group_id INTEGER NOT NULL PRIMARY KEY,
    stream_id TEXT NOT NULL,
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    head INTEGER NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    created_us INTEGER NOT NULL,
    UNIQUE (stream_id, name)
)
;;
CREATE TABLE IF NOT EXISTS outbox_group_members (
    group_id INTEGER NOT NULL,
    member TEXT NOT NULL,
    expires_us INTEGER NOT NULL,
    lease_us INTEGER NOT NULL,
    PRIMARY KEY (group_id, member)
)
;;
CREATE TABLE IF NOT EXISTS outbox_group_lots (
    group_id INTEGER NOT NULL,
    token INTEGER NOT NULL,
    events TEXT NOT NULL,
    member TEXT,
    tries INTEGER NOT NULL,
    not_before_us INTEGER NOT NULL,
    suspect INTEGER NOT NULL,
    reason TEXT,
    PRIMARY KEY (group_id, token)
)
;;
CREATE TABLE IF NOT EXISTS outbox_group_letters (
    group_id INTEGER NOT NULL,
    event_id INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    reason TEXT NOT NULL,
    event TEXT NOT NULL,
    recorded_us INTEGER NOT NULL,
    PRIMARY KEY (group_id, event_id)
)

-- name: group_now
SELECT CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)

-- name: group_create
INSERT INTO outbox_groups (group_id, stream_id, name, settings, head, created_us)
VALUES (:group_id, :stream_id, :name, :settings, :head, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))

-- name: group_find
SELECT group_id FROM outbox_groups WHERE stream_id = :stream_id AND name = :name

-- name: group_names
SELECT name FROM outbox_groups WHERE stream_id = :stream_id ORDER BY name

-- name: group_lock
SELECT settings, head, paused, skipped FROM outbox_groups WHERE group_id = :group_id

-- name: group_lots
SELECT token, events, member, tries, not_before_us, suspect, reason
FROM outbox_group_lots WHERE group_id = :group_id ORDER BY token

-- name: group_members
SELECT member, expires_us, lease_us FROM outbox_group_members WHERE group_id = :group_id ORDER BY member

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
UPDATE outbox_group_members SET expires_us = CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) + lease_us
WHERE group_id = :group_id AND member = :member

-- name: group_letter_add
INSERT INTO outbox_group_letters (group_id, event_id, tries, reason, event, recorded_us)
VALUES (:group_id, :event_id, :tries, :reason, :event, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))

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
