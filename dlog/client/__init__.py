"""The client library: plain asyncio, no C extension of its own, usable in forking programs.

client.py is the public API, sync.py the same without an event loop; producer.py batches and retries, pipeline.py
appends without waiting, reader.py reads, routing.py finds proxies, connection.py implements docs/protocol.md.
"""
