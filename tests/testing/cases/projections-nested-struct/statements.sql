CREATE STREAM X (K STRING KEY, a STRUCT<b ARRAY<STRUCT<c MAP<STRING,DOUBLE>>>>)
  WITH (kafka_topic='x', value_format='JSON');
CREATE STREAM O AS SELECT k, a->b[1]->c['q'] as v, a FROM X;
