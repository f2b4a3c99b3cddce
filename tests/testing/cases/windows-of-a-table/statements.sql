CREATE STREAM sales (shop STRING KEY, n INT) WITH (kafka_topic='sales', value_format='JSON');
CREATE TABLE hourly AS SELECT shop, SUM(n) AS n FROM sales WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY shop;
CREATE TABLE busy AS SELECT shop, n, WINDOWSTART AS since FROM hourly WHERE n > 10;
