-- The first layout: an out table and what it remembers of itself.
CREATE TABLE {info} (
    one_row         tinyint NOT NULL DEFAULT 1 PRIMARY KEY CHECK (one_row = 1),
    schema_version  integer NOT NULL,
    source          varchar(1024) NOT NULL,
    outbox_id       varchar(36) NOT NULL,
    stream_id       varchar(36),
    deleted_through bigint NOT NULL DEFAULT 0,
    leader          varchar(255),
    lease_until     datetime(6),
    server_id       varchar(255),
    installed_at    datetime(6) NOT NULL DEFAULT (utc_timestamp(6))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
CREATE TABLE {table} (
    id              bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    type            varchar(255) NOT NULL,
    subject         varchar(1024),
    data            longtext,
    data_bytes      longblob,
    datacontenttype varchar(255),
    headers         longtext,
    time            datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
    CHECK (type <> ''),
    CHECK (month(time) > 0 AND dayofmonth(time) > 0),
    CHECK (data IS NULL OR data_bytes IS NULL)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
;;
SET @outbox_id = uuid()
;;
INSERT INTO {info} (schema_version, source, outbox_id) VALUES (1, {source_literal}, @outbox_id)
