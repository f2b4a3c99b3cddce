CREATE TYPE money AS DECIMAL(8, 2);
CREATE TYPE IF NOT EXISTS money AS INT;
CREATE TYPE item AS STRUCT<name STRING, price money>;
CREATE STREAM s (k INT KEY, i item, l ARRAY<item>) WITH (kafka_topic='s', value_format='JSON');
DROP TYPE item;
DROP TYPE IF EXISTS nothing;
CREATE STREAM o AS SELECT k, i->price * 2 AS double, CAST(l[1]->price AS MONEY) AS p FROM s;
