CREATE STREAM INPUT (K STRING KEY, s STRING, n STRING, i INT) WITH (kafka_topic='input', value_format='JSON');
CREATE STREAM OUTPUT AS SELECT K, LCASE(s) AS X0, UCASE(s) AS X1, LEN(s) AS X2, TRIM('  a ') AS X3,
    SUBSTRING(s,7) AS X4, SUBSTRING(s,1,4) AS X5, SUBSTRING(s,-5,3) AS X6, CONCAT(s,'-',s) AS X7,
    CONCAT('a',n) AS X8, CONCAT_WS('-','a',n,'b') AS X9, s+'x' AS X10, REPLACE(s,'l','L') AS X11,
    INITCAP('foo BAR') AS X12, INSTR(s,'o') AS X13, INSTR(s,'o',6) AS X14, LPAD('a',3,'xy') AS X15,
    RPAD('a',3,'xy') AS X16, REVERSE('abc') AS X17, LEFT(s,2) AS X18, RIGHT(s,2) AS X19,
    TRANSLATE('abc','ab','xy') AS X20
  FROM INPUT;
