CREATE STREAM I (k INT KEY, a INT, b BIGINT, s STRING, d DOUBLE, arr ARRAY<INT>)
  WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM O AS SELECT k, s LIKE '%a_c' as l, s NOT LIKE 'x%' as n, s LIKE 'a!%c' ESCAPE '!' as e FROM I;
