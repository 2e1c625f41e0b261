-- name: demo_table
CREATE TABLE {orders} (id varchar(40) PRIMARY KEY, customer varchar(40) NOT NULL, total integer NOT NULL)

-- name: demo_order
INSERT INTO {orders} (id, customer, total) VALUES (:id, :customer, :total)

-- name: demo_orders
SELECT id FROM {orders}

-- name: demo_drop
DROP TABLE {orders}
