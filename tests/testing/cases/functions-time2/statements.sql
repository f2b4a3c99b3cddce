CREATE STREAM shifts (id INT KEY, began TIME, day STRING, due DATE) WITH (kafka_topic='shifts', value_format='JSON');
CREATE STREAM o AS SELECT id, CONVERT_TZ(began, '+0100', '-0300') AS began, PARSE_DATE(day, 'yyyy-MM-dd HH:mm') AS day,
    GREATEST(due, NULL, '1970-03-01') AS due, LEAST(began, '06:30:00') AS early, DATEADD(DAYS, 1, '1970-01-31') AS next,
    FORMAT_DATE('1970-02-03', 'd/M/yy') AS shown FROM shifts;
