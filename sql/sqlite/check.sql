-- name: check_journal
PRAGMA journal_mode

-- name: check_synchronous
PRAGMA synchronous

-- name: check_table
SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = {name_literal} COLLATE NOCASE

-- name: check_triggers
SELECT name FROM sqlite_schema
WHERE type = 'trigger' AND tbl_name = {name_literal} COLLATE NOCASE AND name <> {name_literal} || '_immutable' COLLATE NOCASE

-- name: check_unique_indexes
SELECT name FROM pragma_index_list({name_literal}) WHERE "unique" = 1

-- name: check_references
SELECT t.name, f."from" FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS f
WHERE t.type = 'table' AND f."table" = {name_literal} COLLATE NOCASE

-- name: check_position
SELECT deleted_through, (SELECT max(id) FROM {table}),
       (SELECT count(*) FROM {table} WHERE id <= deleted_through), (SELECT min(id) FROM {table}),
       (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE id > max(relayed_through, deleted_through) LIMIT 100000))
FROM {info}

-- name: check_drawn
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = {name_literal} COLLATE NOCASE), 0)
