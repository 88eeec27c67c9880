"""Entries of another ledger with the same id, which bookies hold after ZooKeeper was restored from an older backup.

Metadata does not name that older ledger, and the ledger of the world has its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlog.bookie.journal import Kind, Record, ledger_record
from dlog.wire.digest import Digest, crc32c


def durable_records(digest: Digest, entries: Sequence[int], *, real: bool) -> list[tuple[int, Any]]:
    """The journal of a bookie that stored these entries of the older ledger; real: as the real bookie writes it."""
    records: list[tuple[int, Any]] = []
    for token, entry in enumerate(entries, start=1):
        payload = b"older entry %d" % entry
        packet = b"".join(digest.pack(entry, entry - 1, len(payload) * (entry + 1), (payload,)))
        ledger = digest.ledger_id
        if real:
            key = ledger_record(ledger, digest.master_key, False)
            records.append((token, (key, Record(Kind.ADD, packet, crc32c(packet)))))
        else:
            records.append((token, ("add", ledger, entry, packet)))
    return records
