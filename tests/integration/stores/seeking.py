"""Checks `locate` of a reader against a search that reads every entry."""

from __future__ import annotations

import random

from dlog.errors import DamagedError
from dlog.log.contents import EntryContents, read_contents
from dlog.log.dedup_trailer import encode_trailer
from dlog.log.seeking import SeekTarget
from dlog.model.ids import EntryId
from dlog.stores.contract import SegmentReader
from dlog.wire.entry import CONTROL, RECORD_SET, Record, build_record_set, control_record, encode_entry

START_MS = 1_700_000_000_000


def entry_payload(txids: list[int], unix_ms: int | None, size: int = 40) -> bytes:
    """An entry with a batch for each txid, as an owner packs it; without time: without a trailer."""
    records = [Record(RECORD_SET, at, txid, build_record_set([b"." * size])) for at, txid in enumerate(txids, 1)]
    if unix_ms is not None:
        records.append(Record(CONTROL, len(txids), txids[-1], encode_trailer(unix_ms, -1, [], None)))
    return b"".join(encode_entry(records))


def draw_entries(rng: random.Random, count: int, size: int = 40) -> list[bytes]:
    """Entries whose txids and times never go down. Some have no record, one cannot be read."""
    payloads: list[bytes] = []
    txid, unix_ms, foreign = 5, START_MS, rng.randrange(2 * count)
    for at in range(count):
        unix_ms += rng.choice((0, 1, 50))
        if at == foreign:
            payloads.append(b"of another program")
        elif rng.random() < 0.15:
            payloads.append(b"".join(encode_entry([control_record(at, txid)])))
        else:
            txids = [txid := txid + rng.choice((0, 0, 1, 7)) for _ in range(rng.choice((1, 1, 3)))]
            payloads.append(entry_payload(txids, unix_ms, size))
    return payloads


async def check_locate(reader: SegmentReader, payloads: list[bytes], rng: random.Random) -> int:
    """Search for each txid and time of these entries, and for those beside them, among all entries and among some.
    Returns how many entries were left, on average for a search among all."""
    contents = [_contents(payload) for payload in payloads]
    notes = [one.note.unix_ms for one in contents if one is not None and one.note is not None]
    txids = [txid for one in contents if one is not None for txid in one.txids]
    left = []
    for by_time, keys in ((False, txids), (True, notes)):
        for least in sorted({key + more for key in keys for more in (-1, 0, 1)}):
            first = rng.randrange(len(payloads))
            for begin, end in ((0, len(payloads) - 1), (first, rng.randrange(first, len(payloads)))):
                low, high = await reader.locate(EntryId(begin), EntryId(end), least, by_time=by_time)
                told = f"by_time={by_time} least={least} among={begin}..{end} left={low}..{high}"
                assert begin <= low <= high + 1 <= end + 1, told
                match = _first_match(contents, SeekTarget(by_time, least), begin, end)
                assert match is None or low <= match <= high, f"{told} match={match}"
                if begin == 0:
                    left.append(high - low + 1)
    return sum(left) // len(left)


def _contents(payload: bytes) -> EntryContents | None:
    try:
        return read_contents(payload)
    except DamagedError:
        return None


def _first_match(contents: list[EntryContents | None], target: SeekTarget, begin: int, end: int) -> int | None:
    for at in range(begin, end + 1):
        one = contents[at]
        if one is not None and target.slot_in(one) is not None:
            return at
    return None
