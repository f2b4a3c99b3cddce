CREATE STREAM "s" (k INT KEY, "lower" INT, `Mixed Case` STRING, D DOUBLE, L ARRAY<INT>) WITH (kafka_topic='s', value_format='JSON');
CREATE STREAM "o" AS SELECT k, "lower" + 1 AS "sum", "Mixed Case" || ' "quoted"' AS M FROM "s";
CREATE TABLE T AS SELECT d * 2 AS "double", LATEST_BY_OFFSET(L) AS l FROM "s" GROUP BY d * 2;
