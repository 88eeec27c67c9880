"""W18: speed of reading streams in Spark, compared with Spark's Kafka source and with Parquet, in one run.

Invariants:
- all sources hold the same records and are read in turns by the same session on local[2], with a warm page cache;
- figures are of payload bytes; records are verified before and counted during the measurement;
- a cell that was not run is listed with the reason.
"""
