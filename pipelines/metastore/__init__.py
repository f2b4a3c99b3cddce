"""The metastore: what is defined, as a log of commands in Kafka with a database that shows what the log says.

The log is the truth. A statement is validated against everything before it, under a lock that Kafka's transactions
give, and written with the changes it makes; whoever reads the log makes those changes and decides nothing again.
"""
