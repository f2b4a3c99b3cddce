CREATE STREAM X (a INT) WITH (value_format='JSON');
