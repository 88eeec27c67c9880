"""The file COLLECTION of a bookie's last ledger directory: what its disk knows of its marks in metadata.

A file that is missing or damaged is as good as none: a new chain of marks begins (dlog/bookie/collecting.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.collecting import MarkRecord
from dlog.io.disk import NO_SPACE, Disk, read_whole

COLLECTION = "COLLECTION"


def read_record(disk: Disk, directory: str) -> MarkRecord:
    """Raises OSError."""
    data = read_whole(disk, directory, COLLECTION)
    if data is None or data[-9:] != b"%08x\n" % crc32c(data[:-9]):
        return MarkRecord()
    document = json.loads(data[:-9])
    return MarkRecord(document["chain"], document["mark"], document["next"])


def write_record(write: Callable[[str, bytes], None], record: MarkRecord) -> str:
    """write: puts bytes under a name in the bookie's last ledger directory, durable and all or nothing.

    Durable when it returns "". Returns why not if there is no room; raises OSError for any other failure.
    """
    text = json.dumps({"chain": record.chain, "mark": record.mark, "next": record.next}).encode() + b"\n"
    try:
        write(COLLECTION, text + b"%08x\n" % crc32c(text))
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        return str(error.strerror)
    return ""
