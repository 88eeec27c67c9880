"""What a verification of a ledger found: bad copies as ranges, and how many entries have too few good ones."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.model.ids import BookieId, EntryId


@dataclass(frozen=True, slots=True)
class BadRange:
    """A bookie's copies of entries first..last, of those it should hold, that are missing or do not verify.

    kind: "damaged" or "thin", as the entries are. why: the reason for the first of them. is_wrong: some of
    them are copies that do not verify, while another bookie's do.
    """

    first: EntryId
    last: EntryId
    bookie: BookieId
    kind: str
    why: str
    is_wrong: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification. entries: number checked. ranges: bad copies by bookie, in order of first entry.

    below_write_quorum, below_ack_quorum, without_copy: the number of entries with fewer than Qw, fewer than Qa, and no
    good copies; each includes the next. omitted: bookies with more ranges than are listed (dlog/ledger/verifying.py,
    RANGES_MAX), and how many more; the last ones of the bookie are left out.
    """

    entries: int
    ranges: tuple[BadRange, ...] = ()
    below_write_quorum: int = 0
    below_ack_quorum: int = 0
    without_copy: int = 0
    omitted: tuple[tuple[BookieId, int], ...] = ()
