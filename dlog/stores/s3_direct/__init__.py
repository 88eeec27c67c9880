"""The segment store `s3-direct`: each segment is a chain of objects, acknowledged when the object storage has them.

Read store.py first. The protocol is dlog/objects/chain.py, the bytes are dlog/wire/chunk.py.
"""
