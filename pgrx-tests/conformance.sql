-- Inputs and results that the library and its stand-ins (sql/portable/01_native.sql) have in common: tests/e2e/conformance.rs
-- runs every case on both, in a transaction that is rolled back. A case is its name, statements, and what the last of them,
-- which begins the line with SELECT, returns as JSON after "-- =>"; or the SQLSTATE and message that the last but one statement
-- ends with after "-- !>". What comes before the first case is executed before each of them.

SELECT webhook_set_endpoint('all', 'https://example.com/', policy => 'standard');
CREATE VIEW emitted AS
    SELECT v.id, v.event_type AS type, v.payload, v.tenant, d.ordering_key, d.coalesce_key
    FROM webhook.event v JOIN webhook.delivery d ON d.event_id = v.id;
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE DOMAIN amount AS numeric(10, 2);
CREATE TYPE place AS (city text, since date);
CREATE TABLE orders (id int PRIMARY KEY, status text, total amount, card text);

-- case: an id is a UUID of version 7 and variant 2
SELECT get_byte(uuid_send(id), 6) >> 4 AS version, get_byte(uuid_send(id), 8) >> 6 AS variant FROM webhook.new_id() AS id;
-- => [{"variant": 2, "version": 7}]

-- case: an id has the time in milliseconds
SELECT abs(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint - extract(epoch FROM clock_timestamp()) * 1000) < 1000 AS is_now
FROM webhook.new_id() AS id;
-- => [{"is_now": true}]

-- case: ids of a session are in the order in which it has asked for them
CREATE TEMP TABLE made AS SELECT n, webhook.new_id() AS id FROM generate_series(1, 3000) AS n;
SELECT count(*) FILTER (WHERE id <= before) AS disordered, count(DISTINCT id) AS ids
FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM made) m;
-- => [{"ids": 3000, "disordered": 0}]

-- case: a secret is 32 bytes in base64, and another each time
SELECT bool_and(s ~ '^whsec_[A-Za-z0-9+/]{43}=$') AS is_valid, count(DISTINCT s) AS secrets
FROM (SELECT webhook.new_secret() AS s FROM generate_series(1, 100)) m;
-- => [{"secrets": 100, "is_valid": true}]

-- case: the public key is the second half of a private one
SELECT webhook.public_half('whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==') AS public_key;
-- => [{"public_key": "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="}]

-- case: a secret of signatures in headers is 32 bytes in hex, and another each time
SELECT bool_and(s ~ '^[0-9a-f]{64}$') AS is_valid, count(DISTINCT s) AS secrets
FROM (SELECT webhook.new_hmac_secret() AS s FROM generate_series(1, 100)) m;
-- => [{"secrets": 100, "is_valid": true}]

-- case: a secret that the receiver has is kept as it is, and rotated
SELECT webhook_set_endpoint('all', headers => '{"X-Signature": "{{hmac_hex(body)}}"}', hmac_secret => 'It''s a Secret');
SELECT webhook_rotate_hmac_secret('all', secret => 'whsec_It''s another');
SELECT webhook_hmac_secret('all') AS newest, r.hmac_secrets FROM webhook.endpoint e, webhook.routes(ARRAY[e.id]) r;
-- => [{"newest": "whsec_It's another", "hmac_secrets": ["whsec_It's another", "It's a Secret"]}]

-- case: a credential has no placeholder
SELECT webhook_set_endpoint('all', headers => '{"Proxy-Authorization": "Bearer {{data.token}}"}');
-- !> 22023 endpoint is not valid

-- case: a credential may have braces
SELECT webhook_set_endpoint('all', headers => '{"Authorization": "Bearer {{{{t}}"}');
SELECT headers FROM webhook.endpoint;
-- => [{"headers": {"Authorization": "Bearer {{{{t}}"}}]

-- case: defaults of settings
SELECT name, webhook.setting(name) FROM unnest('{site, senders, stale_after, max_payload, retention_sent, keep_attempts}'::text[]) AS name;
-- => [{"name": "site", "setting": ""}, {"name": "senders", "setting": "1"}, {"name": "stale_after", "setting": "5min"}, {"name": "max_payload", "setting": "1MB"}, {"name": "retention_sent", "setting": "7d"}, {"name": "keep_attempts", "setting": "failed"}]

-- case: an insert, an update and a delete
SELECT webhook_watch('orders', 'order');
INSERT INTO orders VALUES (1, 'new', 9.5, '4111');
UPDATE orders SET status = 'paid', id = 2;
DELETE FROM orders;
SELECT type, payload FROM emitted ORDER BY id;
-- => [{"type": "order.created", "payload": {"type": "INSERT", "table": "orders", "record": {"id": 1, "card": "4111", "total": 9.50, "status": "new"}, "schema": "public", "old_record": null}}, {"type": "order.updated", "payload": {"type": "UPDATE", "table": "orders", "record": {"id": 2, "card": "4111", "total": 9.50, "status": "paid"}, "schema": "public", "old_record": {"id": 1, "card": "4111", "total": 9.50, "status": "new"}}}, {"type": "order.deleted", "payload": {"type": "DELETE", "table": "orders", "record": null, "schema": "public", "old_record": {"id": 2, "card": "4111", "total": 9.50, "status": "paid"}}}]

-- case: a truncate
SELECT webhook_watch('orders', 'order', operations => '{truncate}');
INSERT INTO orders VALUES (1);
TRUNCATE orders;
SELECT type, payload FROM emitted ORDER BY id;
-- => [{"type": "order.truncated", "payload": {"type": "TRUNCATE", "table": "orders", "record": null, "schema": "public", "old_record": null}}]

-- case: rows of a statement, in their order
SELECT webhook_watch('orders', 'order');
INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 3) AS n;
UPDATE orders SET status = 'paid' WHERE id > 1;
DELETE FROM orders WHERE id > 5;
SELECT type, coalesce(payload -> 'record', payload -> 'old_record') -> 'id' AS row FROM emitted ORDER BY id;
-- => [{"row": 1, "type": "order.created"}, {"row": 2, "type": "order.created"}, {"row": 3, "type": "order.created"}, {"row": 2, "type": "order.updated"}, {"row": 3, "type": "order.updated"}]

-- case: an insert that updates on conflict
INSERT INTO orders VALUES (1, 'old');
SELECT webhook_watch('orders', 'order');
INSERT INTO orders VALUES (1, 'new'), (2, 'new') ON CONFLICT (id) DO UPDATE SET status = excluded.status;
SELECT type, payload -> 'record' -> 'id' AS row, payload -> 'old_record' -> 'status' AS old FROM emitted ORDER BY type;
-- => [{"old": null, "row": 2, "type": "order.created"}, {"old": "old", "row": 1, "type": "order.updated"}]

-- case: types of columns
CREATE TABLE kinds (a int8, b float4, c float8, d bool, e date, f timestamp, g timestamptz, h interval, i bytea, j uuid, k json, l jsonb,
                    m int[], n inet, o int4range, p mood, q amount, r place, s place[], t "char", u numeric, v xid8, w name);
SELECT webhook_watch('kinds', 'kind');
INSERT INTO kinds VALUES (9007199254740993, 0.1, 1e300, true, '2026-01-02', '2026-01-02 03:04', '2026-01-02 03:04+05', '1 day 2 h', '\xff00',
    '00000000-0000-7000-8000-000000000000', '{"b": 1, "a": 2}', '{"b": 1, "a": 2}', '{{1,2},{3,4}}', '10.0.0.1', '[1,5)', 'sad', 1.5,
    ROW('Łódź', '2026-01-01'), ARRAY[ROW('a', NULL)::place], 'x', 'NaN', '7', 'n');
SELECT payload -> 'record' AS record FROM emitted;
-- => [{"record": {"a": 9007199254740993, "b": 0.1, "c": 1e+300, "d": true, "e": "2026-01-02", "f": "2026-01-02T03:04:00", "g": "2026-01-01T22:04:00+00:00", "h": "1 day 02:00:00", "i": "\\xff00", "j": "00000000-0000-7000-8000-000000000000", "k": {"a": 2, "b": 1}, "l": {"a": 2, "b": 1}, "m": [[1, 2], [3, 4]], "n": "10.0.0.1", "o": "[1,5)", "p": "sad", "q": 1.50, "r": {"city": "Łódź", "since": "2026-01-01"}, "s": [{"city": "a", "since": null}], "t": "x", "u": "NaN", "v": "7", "w": "n"}}]

-- case: the writer's settings do not show
CREATE TABLE kinds (c float8, e date, g timestamptz, h interval, i bytea);
SELECT webhook_watch('kinds', 'kind');
SET LOCAL timezone = 'Asia/Tokyo';
SET LOCAL datestyle = 'German';
SET LOCAL intervalstyle = 'iso_8601';
SET LOCAL bytea_output = 'escape';
SET LOCAL extra_float_digits = -5;
INSERT INTO kinds VALUES (0.1234567890123, '02.01.2026', '2026-01-02 03:04+00', '1 day 2 h', '\xff00');
SELECT payload -> 'record' AS record FROM emitted;
-- => [{"record": {"c": 0.1234567890123, "e": "2026-01-02", "g": "2026-01-02T03:04:00+00:00", "h": "1 day 02:00:00", "i": "\\xff00"}}]

-- case: include
SELECT webhook_watch('orders', 'order', include => '{status, id}');
INSERT INTO orders VALUES (1, 'new', 1, '4111');
UPDATE orders SET status = 'paid';
SELECT payload -> 'record' AS record, payload -> 'old_record' AS old FROM emitted ORDER BY id;
-- => [{"old": null, "record": {"id": 1, "status": "new"}}, {"old": {"id": 1, "status": "new"}, "record": {"id": 1, "status": "paid"}}]

-- case: exclude
SELECT webhook_watch('orders', 'order', exclude => '{card, total}', operations => '{delete}');
INSERT INTO orders VALUES (1, 'new', 1, '4111');
DELETE FROM orders;
SELECT payload -> 'record' AS record, payload -> 'old_record' AS old FROM emitted ORDER BY id;
-- => [{"old": {"id": 1, "status": "new"}, "record": null}]

-- case: changed
SELECT webhook_watch('orders', 'order', changed => '{status, total}', include => '{id}');
INSERT INTO orders VALUES (1, 'new', 1, '4111'), (2, NULL, 2, '4111');
UPDATE orders SET card = '4222';
UPDATE orders SET status = 'new';
UPDATE orders SET total = 1.00;
SELECT type, payload -> 'record' -> 'id' AS row FROM emitted ORDER BY id;
-- => [{"row": 1, "type": "order.created"}, {"row": 2, "type": "order.created"}, {"row": 2, "type": "order.updated"}, {"row": 2, "type": "order.updated"}]

-- case: a condition
SELECT webhook_watch('orders', 'order', operations => '{insert, update}', condition => 'NEW.total > 100 -- much');
INSERT INTO orders VALUES (1, 'new', 100), (2, 'new', 101);
UPDATE orders SET total = total + 1;
SELECT type, payload -> 'record' -> 'id' AS row FROM emitted ORDER BY id;
-- => [{"row": 2, "type": "order.created"}, {"row": 1, "type": "order.updated"}, {"row": 2, "type": "order.updated"}]

-- case: ordering and coalescing keys
SELECT webhook_watch('orders', 'order', ordering_key => '{status, id}', coalesce_key => '{card}');
INSERT INTO orders VALUES (1, 'a/b%', 1, 'c'), (2, NULL, 1, NULL), (3, repeat('x', 200), 1, E'tab\t');
DELETE FROM orders WHERE id = 1;
SELECT ordering_key AS "order", coalesce_key AS "coalesce" FROM emitted ORDER BY id;
-- => [{"order": "public/orders/a%2Fb%25/1", "coalesce": "public/orders/c"}, {"order": null, "coalesce": null}, {"order": "sha256:b8cc4e593d3be2e6984dd4ae96860691b483e4fffbb97f570465d892ec54a00d", "coalesce": "sha256:f10bfab0f430b73407d6f29e09248e24d830869fb4356f355348294e3742cf72"}, {"order": "public/orders/a%2Fb%25/1", "coalesce": "public/orders/c"}]

-- case: a tenant column
SELECT webhook_watch('orders', 'order', tenant_column => 'status', include => '{id}');
INSERT INTO orders VALUES (1, 'acme'), (2, NULL);
DELETE FROM orders WHERE id = 1;
SELECT type, tenant, payload -> 'record' AS record FROM emitted ORDER BY id;
-- => [{"type": "order.created", "record": {"id": 1}, "tenant": "acme"}, {"type": "order.created", "record": {"id": 2}, "tenant": null}, {"type": "order.deleted", "record": null, "tenant": "acme"}]

-- case: a tenant that is none
SELECT webhook_watch('orders', 'order', tenant_column => 'status');
INSERT INTO orders VALUES (1, 'a b');
-- !> 22023 the tenant of a row is not valid

-- case: a tenant that is none, with on_error = warn
SELECT webhook_watch('orders', 'order', tenant_column => 'status', on_error => 'warn');
INSERT INTO orders VALUES (1, 'a b'), (2, 'ab');
SELECT payload -> 'record' -> 'id' AS row, (SELECT count(*) FROM orders) AS rows FROM emitted;
-- => [{"row": 2, "rows": 2}]

-- case: a name that is reported
SELECT webhook_watch('orders', 'order', reported_as => 'sales."Orders"', ordering_key => '{id}');
INSERT INTO orders VALUES (1);
SELECT payload -> 'schema' AS schema, payload -> 'table' AS "table", ordering_key FROM emitted;
-- => [{"table": "Orders", "schema": "sales", "ordering_key": "sales/Orders/1"}]

-- case: a partitioned table
CREATE TABLE parts (id int, kind text) PARTITION BY LIST (kind);
CREATE TABLE part_a PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE part_b PARTITION OF parts FOR VALUES IN ('b');
SELECT webhook_watch('parts', 'part', ordering_key => '{id}');
INSERT INTO parts VALUES (1, 'a'), (2, 'b');
UPDATE parts SET id = 3 WHERE kind = 'a';
DELETE FROM parts WHERE kind = 'b';
SELECT type, payload -> 'table' AS "table", ordering_key FROM emitted ORDER BY id;
-- => [{"type": "part.created", "table": "parts", "ordering_key": "public/parts/1"}, {"type": "part.created", "table": "parts", "ordering_key": "public/parts/2"}, {"type": "part.updated", "table": "parts", "ordering_key": "public/parts/3"}, {"type": "part.deleted", "table": "parts", "ordering_key": "public/parts/2"}]

-- case: a column that is gone
SELECT webhook_watch('orders', 'order', exclude => '{card}');
ALTER TABLE orders RENAME card TO number;
INSERT INTO orders VALUES (1);
-- !> 42703 column "card" does not exist any more

-- case: a table that has another name by now
SELECT webhook_watch('orders', 'order');
ALTER TABLE orders RENAME TO sales;
INSERT INTO sales VALUES (1);
SELECT payload -> 'table' AS "table" FROM emitted;
-- => [{"table": "sales"}]

-- case: a trigger by hand
CREATE TRIGGER mine AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION webhook_trigger('mine.changed', '{"include": ["id"]}');
INSERT INTO orders VALUES (1);
UPDATE orders SET status = 'x';
SELECT type, payload -> 'record' AS record, payload -> 'old_record' AS old FROM emitted;
-- => [{"old": {"id": 1}, "type": "mine.changed", "record": {"id": 1}}]

-- case: a trigger that comes before
CREATE TRIGGER mine BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION webhook_trigger('mine.changed');
INSERT INTO orders VALUES (1);
-- !> 39P01 invalid use of webhook_trigger(): it is called BEFORE the operation

-- case: a trigger with an option that there is not
CREATE TRIGGER mine AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION webhook_trigger('mine.changed', '{"excluded": ["card"]}');
INSERT INTO orders VALUES (1);
-- !> 39P01 invalid use of webhook_trigger(): its arguments are not the type of an event and options that it knows

-- case: a trigger with columns that are none
CREATE TRIGGER mine AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION webhook_trigger('mine.changed', '{"exclude": "card"}');
INSERT INTO orders VALUES (1);
-- !> 39P01 invalid use of webhook_trigger(): its arguments are not the type of an event and options that it knows

-- case: a trigger without a type
CREATE TRIGGER mine AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION webhook_trigger();
INSERT INTO orders VALUES (1);
-- !> 39P01 invalid use of webhook_trigger(): its arguments are not the type of an event and options that it knows

-- case: an event that is too large
SELECT webhook_watch('orders', 'order');
INSERT INTO orders VALUES (1, repeat('x', 1100000));
-- !> 54000 payload is larger than webhook.max_payload

-- case: watching again replaces what there was
SELECT webhook_watch('orders', 'order');
SELECT webhook_watch('orders', 'sale', operations => '{insert}');
INSERT INTO orders VALUES (1);
UPDATE orders SET status = 'x';
SELECT type FROM emitted;
-- => [{"type": "sale.created"}]

-- case: unwatching
SELECT webhook_watch('orders', 'order');
SELECT webhook_unwatch('orders') AS dropped;
-- => [{"dropped": 3}]

-- case: a filter
SELECT webhook_set_endpoint('all', filter => '$.data.total > 100 && $.type == "order.created"');
SELECT webhook_emit_many('order.created', ARRAY['{"total": 100}', '{"total": 101}', '{"total": "x"}']::jsonb[]);
SELECT payload FROM emitted;
-- => [{"payload": {"total": 101}}]

-- case: a filter that is no condition
SELECT webhook_set_endpoint('all', filter => '$.data.total');
-- !> 22023 endpoint is not valid
