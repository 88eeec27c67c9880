"""Segments in cold storage: one object per segment, on S3, on a Hadoop file system or in a directory.

Read format.py for the byte format, then store.py. `dlog pipeline offload` (dlog/spark/jobs/offload.py) creates the
objects; they never change. dlog/io/objects.py accesses each kind of storage.
"""
