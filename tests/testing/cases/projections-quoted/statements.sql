CREATE STREAM I (`k` INT KEY, `aB` STRING, `@x` INT) WITH (kafka_topic='i', value_format='JSON');
CREATE STREAM `o` AS SELECT `k`, `aB` as `cD`, `@x`+1 FROM I;
