"""Regions: write-ahead logs that many tables share, each in two topics of one partition.

No module here knows a broker or a clock. `counting.py` decides which entries of a topic count, `tables.py` has what is
known of each table. `owner.py` is the state machine that opens and writes a region; `loading.py`, `maintenance.py` and
`outbox.py` are parts of it. `reading.py` is for readers. `topics.py` is the port to Kafka or to a directory; the bytes
are in dlog/wire/region.py.
"""
