"""Access to objects on S3, on a Hadoop file system or in a directory, for every store that keeps objects.

Read port.py for the interface. dlog/io/objects.py implements it; cold storage (dlog/stores/cold) is its oldest user.
"""
