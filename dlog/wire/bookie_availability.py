"""The ids of a ledger's entries on one bookie: AvailabilityOfEntriesOfLedger, the answer to a list of entries.

    version i32 (0) | groups i32 | 56 zero bytes | groups x (first i64, last i64, size i32, period i32)

A group is `size` consecutive ids from each of first, first + period, ..., last. A single run has last = first and
period 0.

Source: BookKeeper, AvailabilityOfEntriesOfLedger.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable

from dlog.errors import ProtocolError
from dlog.wire.framing import Buffer

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_SIZE_MAX = (1 << 31) - 1
GROUPS_MAX = 200_000  # 4.8 MB; Java's clients take frames of 5 MiB


class TooManyGroups(ValueError):
    """A list has more groups than its bound."""


def encode_runs(runs: Iterable[tuple[int, int]], groups_max: int = GROUPS_MAX) -> bytes:
    """The list. Raises TooManyGroups once it has more than groups_max groups.

    runs: (first, last) of consecutive ids, in order; each is taken once and not kept. Runs of equal size at equal
    distances, as striping makes them, become one group, so that the answer stays short.
    """
    packed = bytearray(_HEADER.size)
    start = group_last = group_size = period = 0  # the group that may still grow; size 0: there is none
    for run_first, run_last in runs:
        while run_first <= run_last:
            size = min(run_last - run_first + 1, _SIZE_MAX)
            distance = run_first - group_last
            if size == group_size and distance <= _SIZE_MAX and (not period or distance == period):
                group_last, period = run_first, distance
            else:
                if group_size:
                    packed += _GROUP.pack(start, group_last, group_size, period)
                if len(packed) >= _HEADER.size + groups_max * _GROUP.size:
                    raise TooManyGroups(f"a list of entries has too many gaps: groups_max={groups_max}")
                start, group_last, group_size, period = run_first, run_first, size, 0
            run_first += size
    if group_size:
        packed += _GROUP.pack(start, group_last, group_size, period)
    _HEADER.pack_into(packed, 0, 0, (len(packed) - _HEADER.size) // _GROUP.size)
    return bytes(packed)


class EntryList:
    """A decoded list: which entries a bookie holds. It keeps the bytes, and 8 more for each group. last: the last one,
    -1 if there is none.

    Raises ProtocolError if the bytes are no such list.
    """

    __slots__ = ("_firsts", "_groups", "last")

    def __init__(self, listed: Buffer = b"") -> None:
        """listed: as received; b"" is a list without entries."""
        data = bytes(listed) or bytes(_HEADER.size)
        if len(data) < _HEADER.size:
            raise ProtocolError(f"list of entries too short: bytes={len(data)}")
        version, count = _HEADER.unpack_from(data)
        if version or count < 0 or len(data) < _HEADER.size + count * _GROUP.size:
            raise ProtocolError(f"not a list of entries: version={version} groups={count} bytes={len(data)}")
        self._groups = data
        self._firsts = array("q", (_GROUP.unpack_from(data, at)[0] for at in _offsets(count)))
        if any(one >= two for one, two in zip(self._firsts, self._firsts[1:], strict=False)):
            raise ProtocolError("the groups of a list of entries are not in order")
        self.last = max((_last_of(*_GROUP.unpack_from(data, at)) for at in _offsets(count)), default=-1)

    def __contains__(self, entry: int) -> bool:
        number = bisect_right(self._firsts, entry) - 1
        if number < 0:
            return False
        first, last, size, period = _GROUP.unpack_from(self._groups, _HEADER.size + number * _GROUP.size)
        distance = entry - first
        return bool(0 <= entry - last < size or (entry < last and period > 0 and distance % period < size))


def _last_of(_first: int, last: int, size: int, _period: int) -> int:
    """The last entry of a group."""
    return last + size - 1


def _offsets(count: int) -> range:
    return range(_HEADER.size, _HEADER.size + count * _GROUP.size, _GROUP.size)
