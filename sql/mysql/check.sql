-- name: check_variables
SHOW GLOBAL VARIABLES WHERE variable_name IN ('version', 'read_only', 'super_read_only', 'innodb_read_only',
    'wsrep_on', 'wsrep_provider',
    'group_replication_group_name', 'group_replication_single_primary_mode',
    'auto_increment_increment', 'auto_increment_offset',
    'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'sync_binlog', 'log_bin', 'performance_schema')

-- name: check_role
SELECT current_user()

-- name: check_table
SELECT engine, table_collation FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}

-- name: check_id
SELECT extra FROM information_schema.columns
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal} AND column_name = 'id'

-- name: check_can_read
SELECT id FROM {table} LIMIT 0

-- name: check_can_delete
DELETE FROM {table} WHERE id = 0

-- name: check_can_read_info
SELECT one_row FROM {info} LIMIT 0

-- name: check_can_update_info
UPDATE {info} SET relayed_through = relayed_through WHERE one_row = 0

-- name: check_patience
SET SESSION lock_wait_timeout = 1

-- name: check_can_lock
-- On the info table: a lock that waits on the out table would hold every writer off.
LOCK TABLES {info} READ

-- name: check_unlock
UNLOCK TABLES

-- name: check_sees_sessions
-- Refused without the PROCESS privilege.
SELECT count(*) FROM information_schema.innodb_trx WHERE trx_id = '0'

-- name: check_sees_prepared
XA RECOVER

-- name: check_triggers
SELECT trigger_name FROM information_schema.triggers
WHERE event_object_schema = coalesce({schema_literal}, database()) AND event_object_table = {name_literal}

-- name: check_unique_indexes
SELECT DISTINCT index_name FROM information_schema.statistics
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}
  AND non_unique = 0 AND index_name <> 'PRIMARY'

-- name: check_references
SELECT DISTINCT concat(table_schema, '.', table_name), constraint_name FROM information_schema.key_column_usage
WHERE referenced_table_schema = coalesce({schema_literal}, database()) AND referenced_table_name = {name_literal}

-- name: check_horizon
-- Old snapshots keep deleted rows from being purged. Never used for the fence.
SELECT concat('thread ', trx_mysql_thread_id, ' in a transaction for ',
              timestampdiff(SECOND, trx_started, now()), ' s')
FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id <> connection_id() AND timestampdiff(SECOND, trx_started, now()) >= :seconds

-- name: check_position
SELECT deleted_through, (SELECT max(id) FROM {table}),
       (SELECT count(*) FROM {table} WHERE id <= deleted_through), (SELECT min(id) FROM {table}),
       (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE id > (
            SELECT greatest(relayed_through, deleted_through) FROM {info} AS position) LIMIT 100000) AS waiting)
FROM {info}

-- name: check_drawn
SELECT coalesce(auto_increment, 1) - 1 FROM information_schema.tables
WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}

-- name: check_mark
SELECT connection_id(), @outbox_mark := :mark

-- name: check_marked
SELECT connection_id(), @outbox_mark
