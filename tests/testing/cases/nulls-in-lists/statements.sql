CREATE STREAM items (id INT KEY, name STRING, price DECIMAL(5, 2), sold BOOLEAN, tags ARRAY<BIGINT>, sizes MAP<STRING, BIGINT>, box STRUCT<w BIGINT, h BIGINT>) WITH (kafka_topic='items', value_format='JSON');
CREATE STREAM found AS SELECT id,
  name IN ('pen', 7, false, 1.50) AS by_name, price IN (3, '4.50', NULL) AS by_price, sold IN ('y', NULL) AS by_sold,
  tags IN (ARRAY['1', NULL], ARRAY[2]) AS by_tags, sizes IN (MAP('a' := '1'), MAP('b' := 2)) AS by_sizes,
  box NOT IN (STRUCT(h := 2, w := '1'), STRUCT(w := 9)) AS by_box
FROM items;
