-- name: where
-- The schema that the out table is in, also when the search_path found it.
SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass({table_literal})

-- name: grant_schema
GRANT USAGE ON SCHEMA {schema} TO {role}

-- name: grant_writer
-- Not the id: a column-level INSERT refuses OVERRIDING SYSTEM VALUE and COPY of an ID.
GRANT INSERT (type, subject, data, data_bytes, datacontenttype, headers, time) ON {table} TO {role}
;;
GRANT EXECUTE ON FUNCTION {emit}(text, text, json, json, bytea, text) TO {role}

-- name: grant_relay
GRANT SELECT, DELETE ON {table} TO {role}
;;
GRANT SELECT, UPDATE ON {info} TO {role}
;;
-- USAGE: the canary takes the sequence's lock by currval, which draws nothing.
GRANT SELECT, USAGE ON SEQUENCE {sequence} TO {role}
;;
GRANT SELECT ON {lag} TO {role}

-- name: grant_relay_more
-- To name a blocker: application, user and state of other roles' sessions. Needs a superuser.
GRANT pg_read_all_stats TO {role}

-- name: schema_usable
-- PostgreSQL only warns when the grantor may not grant the schema's privileges.
SELECT has_schema_privilege({role_literal}, {schema_literal}, 'USAGE')
