"""The body of an upload to S3, sent from the parts it consists of.

A body of 64 MiB that is given as bytes is copied twice and hashed before its first byte is sent, which stops the event
loop for 0.1 s. This one is joined in pieces of SEND_BYTES while it is sent, and other tasks run in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from dlog.options import KiB
from dlog.stores.object_storage.port import Buffer

SEND_BYTES = 256 * KiB  # about, of one piece; a larger part is sent as it is


class UploadBody:
    """A body for aiobotocore's put_object and upload_part. Each iteration sends all of it; the parts must not change.

    botocore takes a body for a file if it has `read`, and calls `seek` before it sends a request once more (after a
    redirect, for example). aiohttp iterates it and calls neither.
    """

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = parts
        self._bytes = sum(map(len, parts))

    def __len__(self) -> int:
        return self._bytes

    def beginning(self, size: int) -> bytes:
        """Its first bytes, as many as there are up to `size`."""
        gathered = b""
        for part in self._parts:
            gathered += part[: size - len(gathered)]
            if len(gathered) >= size:
                break
        return gathered

    def seek(self, offset: int, whence: int = 0) -> int:
        """Does nothing: each iteration begins at the start."""
        return 0

    def read(self, size: int = -1) -> bytes:
        """All of it, whatever the size."""
        return b"".join(self._parts)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        gathered: list[Buffer] = []
        size = 0
        for part in self._parts:
            gathered.append(part)
            size += len(part)
            if size >= SEND_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
                await asyncio.sleep(0)  # a socket with room does not make the sender wait
        if gathered:
            yield b"".join(gathered)
