"""The file COLLECTION in a bookie's last ledger directory: the bookie's record of its garbage collection marks.

If it is missing or damaged, a new chain of marks begins (dlog/bookie/garbage_collection.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.garbage_collection import MarkRecord
from dlog.io.disk import NO_SPACE, Disk, read_file

COLLECTION = "COLLECTION"


def read_mark_record(disk: Disk, directory: str) -> MarkRecord:
    """Raises OSError. Empty if the file is missing or damaged."""
    data = read_file(disk, directory, COLLECTION)
    if data is None or data[-9:] != b"%08x\n" % crc32c(data[:-9]):
        return MarkRecord()
    document = json.loads(data[:-9])
    return MarkRecord(document["chain"], document["mark"], document["next"])


def write_mark_record(write: Callable[[str, bytes], None], record: MarkRecord) -> str:
    """Write the record with `write`, which replaces a file durably and atomically.

    Returns "" when durable, or the reason if there is no space. Raises OSError for other failures.
    """
    text = json.dumps({"chain": record.chain, "mark": record.mark, "next": record.next}).encode() + b"\n"
    try:
        write(COLLECTION, text + b"%08x\n" % crc32c(text))
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        return str(error.strerror)
    return ""
