CREATE STREAM I (b STRING) WITH (kafka_topic='i', value_format='JSON', wrap_single_value=false);
CREATE STREAM O AS SELECT b FROM I;
CREATE STREAM P WITH(wrap_single_value=false) AS SELECT b FROM I;
