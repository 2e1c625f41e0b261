-- name: check_server
SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
       current_setting('transaction_read_only') = 'on', pg_encoding_to_char(encoding)
FROM pg_database WHERE datname = current_database()

-- name: check_role
SELECT current_user

-- name: check_settings
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts')

-- name: check_table
-- row_security_active: whether policies would hide rows from this very role.
SELECT c.relkind::text, c.relpersistence::text, c.relrowsecurity, row_security_active(c.oid)
FROM pg_class AS c WHERE c.oid = to_regclass({table_literal})

-- name: check_sequence
SELECT a.attidentity::text, s.seqrelid::regclass::text, s.seqcache, s.seqcycle, s.seqincrement, c.relpersistence::text
FROM pg_attribute AS a
LEFT JOIN pg_sequence AS s ON s.seqrelid = pg_get_serial_sequence({table_literal}, 'id')::regclass
LEFT JOIN pg_class AS c ON c.oid = s.seqrelid
WHERE a.attrelid = to_regclass({table_literal}) AND a.attname = 'id' AND NOT a.attisdropped

-- name: check_privileges
SELECT has_table_privilege({table_literal}, 'SELECT'), has_table_privilege({table_literal}, 'DELETE'),
       has_table_privilege({info_literal}, 'SELECT'), has_table_privilege({info_literal}, 'UPDATE'),
       to_regclass({sequence_literal}) IS NULL OR has_sequence_privilege({sequence_literal}, 'SELECT'),
       to_regclass({sequence_literal}) IS NULL OR has_sequence_privilege({sequence_literal}, 'USAGE')

-- name: check_sees_sessions
SELECT pg_has_role('pg_read_all_stats', 'USAGE')

-- name: check_subscription
SELECT s.subname FROM pg_subscription_rel AS r JOIN pg_subscription AS s ON s.oid = r.srsubid
WHERE r.srrelid = to_regclass({table_literal})

-- name: check_triggers
SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass({table_literal}) AND NOT tgisinternal AND tgenabled <> 'D'
UNION ALL
SELECT rulename FROM pg_rewrite WHERE ev_class = to_regclass({table_literal}) AND ev_enabled <> 'D'

-- name: check_unique_indexes
SELECT indexrelid::regclass::text FROM pg_index
WHERE indrelid = to_regclass({table_literal}) AND (indisunique OR indisexclusion) AND NOT indisprimary

-- name: check_references
SELECT conrelid::regclass::text, conname FROM pg_constraint
WHERE confrelid = to_regclass({table_literal}) AND contype = 'f' AND conparentid = 0

-- name: check_prepared
SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts WHERE database = current_database()

-- name: check_horizon
-- What keeps vacuum from removing deleted rows: old snapshots, and slots that nobody reads.
SELECT format('pid %s, application %s, user %s, %s for %s s', pid, coalesce(nullif(application_name, ''), '?'),
              coalesce(usename, '?'), coalesce(state, '?'), extract(epoch FROM clock_timestamp() - xact_start)::bigint)
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
  AND extract(epoch FROM clock_timestamp() - xact_start) >= :seconds
UNION ALL
SELECT format('replication slot %s, which nobody reads', slot_name)
FROM pg_replication_slots WHERE xmin IS NOT NULL AND NOT active

-- name: check_position
-- One statement, one snapshot: a cleaner's delete and its mark are seen together.
SELECT deleted_through, (SELECT max(id) FROM {table}),
       (SELECT count(*) FROM {table} WHERE id <= deleted_through), (SELECT min(id) FROM {table}),
       (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE id > greatest(relayed_through, deleted_through) LIMIT 100000) AS waiting)
FROM {info}

-- name: check_drawn
SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}

-- name: check_mark
SELECT pg_backend_pid(), set_config('outbox.mark', :mark, false)

-- name: check_marked
SELECT pg_backend_pid(), current_setting('outbox.mark', true)
