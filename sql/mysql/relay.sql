-- name: session_settings
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: short_lock_waits
-- A relay that is stopped in the middle of a clean-up must not keep the info row, and with it
-- the lease, from a standby. MySQL has no such limit.
SET SESSION innodb_lock_wait_timeout = 2, lock_wait_timeout = 2 /*M!100300 , idle_write_transaction_timeout = 5 */

-- name: fresh_statistics
-- MySQL answers with a day-old AUTO_INCREMENT unless told otherwise; MariaDB never does.
SET SESSION information_schema_stats_expiry = 0

-- name: variables
SHOW VARIABLES WHERE variable_name IN ('version', 'tx_isolation', 'transaction_isolation', 'autocommit', 'read_only',
    'super_read_only', 'innodb_read_only', 'server_uuid', 'server_uid', 'server_id', 'hostname', 'port', 'datadir', 'wsrep_on',
    'group_replication_group_name', 'group_replication_single_primary_mode',
    'auto_increment_increment', 'auto_increment_offset', 'performance_schema')

-- name: connection_id
SELECT connection_id()

-- name: engine
SELECT engine FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}

-- name: replication_mariadb
SHOW ALL REPLICAS STATUS

-- name: replication_mysql
SHOW REPLICA STATUS

-- name: replication_mysql_old
-- MySQL before 8.0.22.
SHOW SLAVE STATUS

-- name: standing
SELECT coalesce((SELECT auto_increment FROM information_schema.tables
                 WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}), 1) - 1,
       (SELECT deleted_through FROM {info})

-- name: read
-- The last column is the row's version: the cleaner makes sure by it that nobody has changed the row.
SELECT id, type, subject, data, data_bytes, datacontenttype, headers, time,
       crc32(coalesce(data, data_bytes, '')) + crc32(concat_ws('|', type, subject, datacontenttype, headers, time))
FROM {table} WHERE id > :after AND id <= :through ORDER BY id LIMIT :limit_rows

-- name: read_bulk
-- The last column tells whether this connection reached the same server as the session.
SELECT id, type, subject, data, data_bytes, datacontenttype, headers, time,
       crc32(coalesce(data, data_bytes, '')) + crc32(concat_ws('|', type, subject, datacontenttype, headers, time)),
       crc32(concat(@@hostname, ':', @@port))
FROM {table} WHERE id > :after AND id <= :through ORDER BY id LIMIT :limit_rows

-- name: which_server
SELECT crc32(concat(@@hostname, ':', @@port))

-- name: redo_log
-- MariaDB: Innodb_lsn_current, Innodb_lsn_flushed. MySQL since 8.0.30: Innodb_redo_log_current_lsn,
-- Innodb_redo_log_flushed_to_disk_lsn.
SHOW GLOBAL STATUS LIKE 'Innodb%lsn%'

-- name: flush_redo_log
FLUSH LOCAL ENGINE LOGS

-- name: flush_by_commit
-- A commit of our own flushes everything written before it. It has to change something; the
-- lease is ours, and a microsecond more or less does not matter to it.
UPDATE {info} SET lease_until = lease_until + INTERVAL 1 MICROSECOND

-- name: read_size
SELECT count(*), coalesce(sum(octets), 0) FROM (
    SELECT length(coalesce(data, data_bytes, '')) + length(coalesce(headers, '')) AS octets
    FROM {table} WHERE id > :after AND id <= :through ORDER BY id LIMIT :limit_rows) AS sized

-- name: can_list_mariadb
SELECT count(*) FROM information_schema.plugins WHERE plugin_name = 'METADATA_LOCK_INFO' AND plugin_status = 'ACTIVE'

-- name: can_list_mysql
SELECT count(*) FROM performance_schema.setup_instruments WHERE name = 'wait/lock/metadata/sql/mdl' AND enabled = 'YES'

-- name: holders_mariadb
-- Everything but the reading modes: LOCK TABLES and LOW_PRIORITY have modes of their own.
SELECT DISTINCT thread_id FROM information_schema.metadata_lock_info
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}
  AND lock_mode NOT IN ('MDL_SHARED', 'MDL_SHARED_HIGH_PRIO', 'MDL_SHARED_READ', 'MDL_SHARED_READ_ONLY')

-- name: holders_mysql
SELECT DISTINCT t.processlist_id, concat(m.owner_thread_id, '/', m.owner_event_id)
FROM performance_schema.metadata_locks AS m LEFT JOIN performance_schema.threads AS t ON t.thread_id = m.owner_thread_id
WHERE m.object_type = 'TABLE' AND m.object_schema = coalesce({schema_literal}, database())
  AND m.object_name = {name_literal} AND m.lock_status = 'GRANTED'
  AND m.lock_type NOT IN ('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')

-- name: prepared
XA RECOVER

-- name: canary
SELECT 1 FROM {table} WHERE id = 0 FOR UPDATE

-- name: barrier_patience
SET SESSION lock_wait_timeout = 1

-- name: barrier_take
LOCK TABLES {table} WRITE

-- name: barrier_drop
UNLOCK TABLES

-- name: late_id
SELECT min(id) FROM {table} WHERE id <= :deleted_through

-- name: blockers
SELECT id, coalesce(host, ''), coalesce(user, ''),
       CASE WHEN command = 'Sleep' THEN 'idle in transaction' ELSE concat('running ', lower(command)) END, time
FROM information_schema.processlist ORDER BY time DESC

-- name: terminate
KILL :pid

-- name: lease_take
UPDATE {info} SET leader = :leader, lease_until = utc_timestamp(6) + INTERVAL :seconds SECOND
WHERE leader IS NULL OR leader = :leader OR lease_until IS NULL OR lease_until < utc_timestamp(6)

-- name: lease_renew
UPDATE {info} SET lease_until = utc_timestamp(6) + INTERVAL :seconds SECOND,
       relayed_through = greatest(relayed_through, :relayed_through)
WHERE leader = :leader

-- name: lease_release
UPDATE {info} SET leader = NULL, lease_until = NULL, relayed_through = greatest(relayed_through, :relayed_through)
WHERE leader = :leader

-- name: bind_stream
UPDATE {info} SET stream_id = :stream_id WHERE stream_id IS NULL OR stream_id = :stream_id

-- name: remember_server
UPDATE {info} SET server_id = :server_id WHERE server_id IS NULL OR server_id = :server_id

-- name: clean_lock
SELECT deleted_through FROM {info} FOR UPDATE

-- name: clean_digest
-- From the end of the range to its front: the other way round InnoDB would wait for the row
-- behind the range, which may be in flight for hours. The limit, which is none, keeps the order.
SELECT count(*), coalesce(sum(id - :after), 0), coalesce(sum(version), 0)
FROM (SELECT id, crc32(coalesce(data, data_bytes, '')) + crc32(concat_ws('|', type, subject, datacontenttype, headers, time)) AS version
      FROM {table} WHERE id > :after AND id <= :through ORDER BY id DESC LIMIT 18446744073709551615 FOR UPDATE) AS locked

-- name: clean_delete
DELETE FROM {table} WHERE id > :after AND id <= :through ORDER BY id DESC

-- name: clean_move
UPDATE {info} SET deleted_through = :through
