CREATE STREAM I (k INT KEY, a INT) WITH (kafka_topic='i', value_format='JSON');
CREATE TABLE O AS SELECT k,collect_list(a) as cl, collect_set(a) cs, latest_by_offset(a) as la,
    earliest_by_offset(a) ea, topk(a,2) tk, count_distinct(a) cd, histogram(cast(a as string)) hi
  FROM I group by k;
