-- name: session_settings
-- row_security off: a policy that would hide a row is an error, not a gap. No sorting: without
-- fresh statistics the planner would sort a backlog (run: 1.3 s to the first of 1M rows) that
-- lies in order in the index. No JIT: it would compile a plan for longer than that takes.
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('row_security', 'off', false),
       set_config('synchronous_commit', 'on', false),
       set_config('idle_in_transaction_session_timeout', '0', false),
       set_config('TimeZone', 'UTC', false),
       set_config('enable_sort', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false),
       set_config('jit', 'off', false)

-- name: short_lock_waits
-- A relay that is stopped in the middle of a clean-up must not keep the info row, and with it
-- the lease, from a standby.
SELECT set_config('lock_timeout', '2s', false), set_config('idle_in_transaction_session_timeout', '5s', false)

-- name: session_verified
SELECT current_setting('transaction_isolation'), current_setting('row_security'), pg_is_in_recovery(),
       current_setting('client_encoding'), current_setting('server_encoding')

-- name: server_id
SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)

-- name: sequence_settings
-- Before PostgreSQL 17 a partitioned table has no identity columns: there a DEFAULT nextval of
-- a sequence that the column owns will do. It draws IDs under the very same lock.
SELECT s.seqcache, s.seqcycle, s.seqincrement,
       CASE WHEN c.relkind = 'p' AND a.attidentity = '' THEN 'a' ELSE a.attidentity END
FROM pg_sequence AS s, pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
WHERE s.seqrelid = {sequence_literal}::regclass
  AND s.seqrelid = pg_get_serial_sequence({table_literal}, 'id')::regclass
  AND a.attrelid = {table_literal}::regclass AND a.attname = 'id'

-- name: subscribed
SELECT count(*) FROM pg_subscription_rel WHERE srrelid = {table_literal}::regclass

-- name: standing
-- Not pg_sequence_last_value: it takes the lock that marks a writer.
SELECT (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}),
       (SELECT deleted_through FROM {info}),
       pg_current_wal_insert_lsn() - '0/0', pg_current_wal_flush_lsn() - '0/0'

-- name: read
SELECT id, type, subject, data, data_bytes, datacontenttype, headers, time, xmin
FROM {table} WHERE id > :after AND id <= :through ORDER BY id LIMIT :limit_rows

-- name: look
-- Several statements in one trip, each with a snapshot of its own: READ COMMITTED. The commit
-- behind the last one flushes the WAL as far as it was written after the rows were seen, so they
-- are durable when the answer comes. What is asked each time in the same words is prepared; not
-- the rows, whose plan depends on how many there are.
EXECUTE outbox_standing;
EXECUTE outbox_holders;
SELECT id, type, subject, data, data_bytes, datacontenttype, headers, time, xmin::text::bigint
FROM {table} WHERE id > :after ORDER BY id LIMIT :limit_rows;
EXECUTE outbox_standing;
EXECUTE outbox_flush_wal

-- name: wal_flushed
SELECT pg_current_wal_flush_lsn() - '0/0'

-- name: flush_wal
-- A commit of our own, with synchronous_commit on, flushes everything written before it.
SELECT CASE WHEN pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()
       THEN pg_logical_emit_message(true, 'outbox', '') END

-- name: holders
-- Keyed by virtualtransaction alone: PREPARE keeps it and makes pid NULL. Not by pid: a
-- session's next transaction is another one.
SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation = {sequence_literal}::regclass

-- name: canary_key
SELECT virtualtransaction FROM pg_locks WHERE locktype = 'virtualxid' AND pid = pg_backend_pid()

-- name: canary
-- currval takes the very lock that nextval takes, keeps it to the end of the transaction,
-- and draws nothing. In a session that has drawn nothing it then fails, as it should here.
SELECT currval({sequence_literal}::regclass)

-- name: late_id
SELECT min(id) FROM {table} WHERE id <= :deleted_through

-- name: blockers
SELECT l.virtualtransaction, l.pid,
       coalesce(a.application_name, ''), coalesce(a.usename, p.owner, ''),
       CASE WHEN l.pid IS NULL THEN 'prepared transaction ' || coalesce(p.gid, '?') ELSE coalesce(a.state, '') END,
       extract(epoch FROM clock_timestamp() - coalesce(p.prepared, a.xact_start))::float8
FROM pg_locks AS l
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL AND p.transaction::text = (
    SELECT x.transactionid::text FROM pg_locks AS x
    WHERE x.locktype = 'transactionid' AND x.virtualtransaction = l.virtualtransaction AND x.mode = 'ExclusiveLock' LIMIT 1)
WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation = {sequence_literal}::regclass
ORDER BY 6 DESC NULLS LAST

-- name: terminate
SELECT pg_terminate_backend(:pid) FROM pg_locks
WHERE pid = :pid AND virtualtransaction = :key AND mode = 'RowExclusiveLock'
  AND relation = {sequence_literal}::regclass

-- name: lease_take
UPDATE {info} SET leader = :leader, lease_until = clock_timestamp() + :seconds * interval '1 second'
WHERE leader IS NULL OR leader = :leader OR lease_until IS NULL OR lease_until < clock_timestamp()

-- name: lease_renew
UPDATE {info} SET lease_until = clock_timestamp() + :seconds * interval '1 second',
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

-- name: clean_delete
WITH deleted AS (DELETE FROM {table} WHERE id > :after AND id <= :through RETURNING id, xmin)
SELECT count(*), coalesce(sum(id - :after), 0)::numeric, coalesce(sum(xmin::text::bigint), 0)::numeric FROM deleted

-- name: clean_move
UPDATE {info} SET deleted_through = :through
