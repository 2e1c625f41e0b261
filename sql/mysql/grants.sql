-- name: where
SELECT coalesce({schema_literal}, database())

-- name: grant_writer
-- Not the id: nobody but the counter gives out IDs.
GRANT INSERT (type, subject, data, data_bytes, datacontenttype, headers, time) ON {table} TO {role}
;;
GRANT EXECUTE ON PROCEDURE {emit} TO {role}

-- name: grant_relay
GRANT SELECT, DELETE ON {table} TO {role}
;;
GRANT SELECT, UPDATE ON {info} TO {role}
;;
GRANT SELECT ON {lag} TO {role}
;;
-- For the barrier, where the holders of metadata locks cannot be listed.
GRANT LOCK TABLES ON {every_table} TO {role}

-- name: grant_relay_more_mysql
-- To list the holders of metadata locks, prepared transactions, and whether the server is a
-- replica. These are for an administrator to grant.
GRANT PROCESS, REPLICATION CLIENT, XA_RECOVER_ADMIN ON *.* TO {role}
;;
GRANT SELECT ON performance_schema.* TO {role}

-- name: grant_relay_more_mariadb
GRANT PROCESS, REPLICA MONITOR ON *.* TO {role}

-- name: version
SELECT version()
