"""RocksDB, as this project uses it. The only folder that imports rocksdict.

database.py   one folder of stores: spaces, reads, atomic writes
scan.py       an iteration over present entries, which others may write to meanwhile
view.py       spaces as they were at one moment
files.py      whether a folder's files fit together, before RocksDB opens it
"""
