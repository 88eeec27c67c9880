"""W18: how fast streams are read in Spark, beside Spark's own Kafka source and beside Parquet, in one run.

The law of this room: what is compared holds the same records, is read by the same session on local[2], in turns, with a
warm page cache; each figure is of payload bytes and of records that were counted while it was measured and verified
before. What was not run is named, with why.
"""
