-- name: group_installed
SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = 'outbox_group_letters'

-- name: group_session
-- Without gap locks, under which two members that insert would deadlock.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED
;;
-- A member that is stopped in the middle of a claim must not keep the group from the others. MySQL
-- itself has no such limit.
SET SESSION innodb_lock_wait_timeout = 15 /*M!100300 , idle_transaction_timeout = 10 */

-- name: group_schema
-- The letters come last: where they are, everything is.
CREATE TABLE IF NOT EXISTS outbox_groups (
    group_id BIGINT NOT NULL PRIMARY KEY,
    stream_id VARCHAR(64) NOT NULL,
    name VARCHAR(200) NOT NULL,
    settings TEXT NOT NULL,
    head BIGINT NOT NULL,
    paused INT NOT NULL DEFAULT 0,
    skipped BIGINT NOT NULL DEFAULT 0,
    created_us BIGINT NOT NULL,
    UNIQUE (stream_id, name)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
CREATE TABLE IF NOT EXISTS outbox_group_members (
    group_id BIGINT NOT NULL,
    member VARCHAR(200) NOT NULL,
    expires_us BIGINT NOT NULL,
    lease_us BIGINT NOT NULL,
    PRIMARY KEY (group_id, member)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
CREATE TABLE IF NOT EXISTS outbox_group_lots (
    group_id BIGINT NOT NULL,
    token BIGINT NOT NULL,
    events LONGTEXT NOT NULL,
    member VARCHAR(200),
    tries INT NOT NULL,
    not_before_us BIGINT NOT NULL,
    suspect INT NOT NULL,
    reason TEXT,
    PRIMARY KEY (group_id, token)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
CREATE TABLE IF NOT EXISTS outbox_group_letters (
    group_id BIGINT NOT NULL,
    event_id BIGINT NOT NULL,
    tries INT NOT NULL,
    reason TEXT NOT NULL,
    event LONGTEXT NOT NULL,
    recorded_us BIGINT NOT NULL,
    PRIMARY KEY (group_id, event_id)
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- name: group_now
SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)

-- name: group_create
INSERT INTO outbox_groups (group_id, stream_id, name, settings, head, created_us)
VALUES (:group_id, :stream_id, :name, :settings, :head, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED))

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
UPDATE outbox_group_members SET expires_us = CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) + lease_us
WHERE group_id = :group_id AND member = :member

-- name: group_letter_add
INSERT INTO outbox_group_letters (group_id, event_id, tries, reason, event, recorded_us)
VALUES (:group_id, :event_id, :tries, :reason, :event, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED))

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
