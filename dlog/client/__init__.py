"""The client: plain asyncio, no extension module of ours, safe to fork around.

client.py is the face, sync.py the same for code without a loop; producer.py batches and retries, pipeline.py hands over
without waiting, reader.py reads, routing.py finds who serves, connection.py speaks the protocol of docs/protocol.md.
"""
