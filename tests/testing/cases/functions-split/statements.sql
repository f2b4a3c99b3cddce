CREATE STREAM lines (id INT KEY, line STRING, mark STRING, raw BYTES) WITH (kafka_topic='lines', value_format='JSON');
CREATE STREAM o AS SELECT id, SPLIT(line, mark) AS parts, SPLIT(raw, TO_BYTES(mark, 'utf8')) AS chunks,
    ARRAY_JOIN(SPLIT(line, '-'), mark) AS joined, REGEXP_SPLIT_TO_ARRAY(line, '[xy]+') AS words FROM lines;
