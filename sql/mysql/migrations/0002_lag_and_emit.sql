-- The relay's position for the lag view, the view itself and an emit procedure. A column
-- that is already there was added by an upgrade that was killed: the program goes on.
ALTER TABLE {info} ADD COLUMN relayed_through bigint NOT NULL DEFAULT 0
;;
UPDATE {info} SET relayed_through = greatest(relayed_through, deleted_through)
;;
CREATE OR REPLACE SQL SECURITY DEFINER VIEW {lag} AS
SELECT count(event.id) AS rows_waiting, min(event.time) AS oldest_waiting_time,
       coalesce(greatest(timestampdiff(MICROSECOND, min(event.time), utc_timestamp(6)) / 1e6, 0), 0) AS lag_seconds,
       CAST(greatest(coalesce((SELECT auto_increment - 1 FROM information_schema.tables
                          WHERE table_schema = coalesce({schema_literal}, database()) AND table_name = {name_literal}), 0),
                coalesce(max(event.id), 0), info.relayed_through, info.deleted_through) AS signed) AS last_id_drawn,
       info.relayed_through, info.deleted_through, info.leader, info.lease_until
FROM {info} AS info
LEFT JOIN {table} AS event ON event.id > greatest(info.relayed_through, info.deleted_through)
GROUP BY info.relayed_through, info.deleted_through, info.leader, info.lease_until
;;
DROP PROCEDURE IF EXISTS {emit}
;;
CREATE PROCEDURE {emit}(
    IN event_type varchar(255), IN event_subject varchar(1024), IN event_data longtext, IN event_headers longtext
) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    IF NOT coalesce(json_valid(event_data), 1) OR NOT coalesce(json_valid(event_headers), 1) THEN
        SIGNAL SQLSTATE '22032' SET MESSAGE_TEXT = 'data and headers of an event must be valid JSON or NULL';
    END IF;
    INSERT INTO {table} (type, subject, data, headers) VALUES (event_type, event_subject, event_data, event_headers);
END
;;
UPDATE {info} SET schema_version = 2
