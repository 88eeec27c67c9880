"""Segments that lie in cold storage: one object each, on S3, on a Hadoop file system or in a directory.

Read format.py for the bytes, then store.py. Objects are made by `dlog pipeline offload` (dlog/spark/jobs/offload.py)
and never changed; how each kind of storage is reached is dlog/io/objects.py.
"""
