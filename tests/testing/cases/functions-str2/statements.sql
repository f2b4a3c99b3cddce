CREATE STREAM INPUT (K STRING KEY, s STRING, n STRING) WITH (kafka_topic='input', value_format='JSON');
CREATE STREAM OUTPUT AS SELECT K, MASK(s) AS X0, MASK(s,'A','b','1','q') AS X1, MASK_LEFT(s,2) AS X2,
    MASK_RIGHT(s,3) AS X3, MASK_KEEP_LEFT(s,4) AS X4, MASK_KEEP_RIGHT(s,4) AS X5, MASK(n) AS X6,
    SPLIT('a,b,,c',',') AS X7, SPLIT('abc','') AS X8, SPLIT(n,',') AS X9,
    REGEXP_EXTRACT('(.*) (.*)','hello there',2) AS X10, REGEXP_EXTRACT('x+','aaxxb') AS X11,
    REGEXP_EXTRACT('z','aa') AS X12, REGEXP_EXTRACT_ALL('.{2}','abcd') AS X13,
    REGEXP_REPLACE('baeb','b.','z') AS X14, REGEXP_SPLIT_TO_ARRAY('abcdefgh','[bf]') AS X15, CHR(75) AS X16,
    CHR('\u004b') AS X17, ELT(2,'a','b') AS X18, ELT(5,'a') AS X19, FIELD('b','a','b') AS X20,
    FIELD(n,'a') AS X21, ENCODE('4578616d706c6521','hex','ascii') AS X22, TO_BYTES('ab','utf8') AS X23,
    FROM_BYTES(TO_BYTES('ab','utf8'),'hex') AS X24
  FROM INPUT;
