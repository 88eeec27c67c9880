"""The client library: plain asyncio, no C extension of its own, usable in forking programs.

client.py is the public API, sync.py the same without an event loop; batch_queue.py makes batches, producer.py sends
and retries them, pipeline.py appends without waiting, reader.py reads, asking.py sends all other requests, routing.py
finds owners, connection_pool.py chooses among proxies, connection.py implements docs/protocol.md.

It logs to `logging.getLogger("dlog")` and the loggers below it, and never configures logging: DEBUG for connections
made, INFO for connections lost, requests retried and reads and appends that go on at another proxy, ERROR for an
internal error. Nothing is logged per record. Without a handler of the program nothing is shown; the error of a
handler is printed to standard error and changes nothing else (safe_log.py).
"""

import logging

logging.getLogger("dlog").addHandler(logging.NullHandler())
