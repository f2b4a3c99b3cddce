CREATE STREAM bags (id INT KEY, names ARRAY<STRING>, sizes ARRAY<INT>, m MAP<STRING, INT>) WITH (kafka_topic='bags', value_format='JSON');
CREATE STREAM o AS SELECT id, AS_MAP(names, sizes) AS made, SPLIT_TO_MAP(names[1], '&', '=') AS parts,
    TRANSFORM(m, (k, v) => SUBSTRING(k, 1, 1), (k, v) => v * 2) AS short, TRANSFORM(m, (k, v) => NULLIF(k, 'box'), (k, v) => v) AS kept,
    ARRAY_DISTINCT(ARRAY[m, m]) AS once, ARRAY_UNION(ARRAY[m], ARRAY[MAP('lid' := 1)]) AS both,
    ARRAY_EXCEPT(ARRAY[m], ARRAY[MAP('lid' := 1)]) AS others, ARRAY_INTERSECT(ARRAY[m, m], ARRAY[MAP('lid' := 1)]) AS lids,
    ARRAY_CONTAINS(ARRAY[m], MAP('lid' := 1)) AS has, ARRAY_REMOVE(ARRAY[m], MAP('lid' := 1)) AS rest FROM bags;
