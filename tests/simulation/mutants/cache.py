"""Mutants of a stream's source on a read proxy.

Each is a defect that is typical of a cache: it accepts an old message, keeps deleted data, or reports an end that is
none.
"""

from __future__ import annotations

from typing import Any

from actors.block_fetcher import BlockFetcher
from actors.entry_cache import EntryCache
from actors.fanout_pacer import FanoutPacer
from actors.lac_watches import LacWatches
from actors.owner_feed import OwnerFeed
from actors.owner_follower import OwnerFollower
from actors.retrying import FreezeTolerantTimeout, RefreshSignal
from actors.stream_feed import StreamFeed
from actors.tail_finder import TailFinder
from dlog.log.reading import StreamReaderMachine
from tests.simulation.cache_ports import MetadataPort, StorePort
from tests.simulation.mutants import edited
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]


def planted(cls: type, *edits: Edit, mute: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"planted": ((cls, edited(cls, *edits)),), "mute": mute}


COHERENCE = (
    Mutant(
        name="a LAC is applied to the location that its segment number has in the known list",
        invariants=("R1", "R2"),
        style="roll",
        parts=planted(
            OwnerFeed,
            (
                "__call__",
                "self._listener.on_first_lac(self, number)",
                "self.locate(number, self._listener._metadata.listed(number))",
            ),
        ),
    ),
    Mutant(
        name="entries sent along are cached for the location that their segment number has in the known list",
        invariants=("R1",),
        style="roll",
        parts=planted(OwnerFeed, ("entries", "self._located.get(number)", "self._listener._metadata.listed(number)")),
    ),
    Mutant(
        name="a read of metadata that began before the question answers it",
        invariants=("R1", "R2"),
        style="roll",
        parts=planted(MetadataPort, ("_read", 'world.config["lag_s"]', "0.05")),
    ),
    Mutant(
        name="the cache keeps entries by segment number, not by location",
        invariants=("R1",),
        style="trim",
        parts=planted(
            BlockFetcher,
            ("answer", "key = segment_key(segment)", "key = str(segment.number)"),
            ("keep", "key = segment_key(segment)", "key = str(segment.number)"),
            ("keep", " or segment_key(now) != key", ""),
        ),
    ),
    Mutant(
        name="entries are requested as far as the reader's list goes, whatever is confirmed",
        invariants=("R1", "S4", "assert"),
        parts=planted(LacWatches, ("_lac_seen", "asked.location, end, True", "asked.location, EntryId(end + 1), True")),
    ),
)

STALENESS = (
    Mutant(
        name="the last LAC of an owner that no longer answers counts as the tail",
        invariants=("R2",),
        style="tail",
        parts=planted(
            TailFinder,
            ("find", "not (confirmed and self._lacs.knows_lac(segment))", "not self._lacs.knows_lac(segment)"),
        ),
    ),
    Mutant(
        name="the LAC of an owner that metadata no longer names counts",
        invariants=("R2",),
        style="tail",
        parts=planted(
            OwnerFollower,
            ("_is_to_be_asked", "following is None or self._metadata.newest_read <= reads_before", "True"),
            (
                "_follow",
                "metadata.owner is not None and metadata.epoch != feed.epoch",
                "False",
            ),
        ),
    ),
    Mutant(
        name="a reader ends when one read of metadata fails at its open",
        invariants=("R2", "R4"),
        style="tail",
        parts=planted(
            StreamFeed,
            ("_show_first", "is_late = patience.is_over and metadata", "is_late = metadata"),
        ),
    ),
    Mutant(
        name="time in which the proxy was frozen counts as waiting for metadata",
        invariants=("R2", "R3", "R4"),
        style="frozen",
        parts=planted(FreezeTolerantTimeout, ("wait", "took_s > 2 * step_s", "False")),
    ),
    Mutant(
        name="the return of metadata is noticed only after the back-off",
        invariants=("R2", "R3", "R4"),
        style="frozen",
        parts=planted(RefreshSignal, ("hint", "self._hinted.set()", "pass"), ("wake", "self._hinted.set()", "pass")),
    ),
    Mutant(
        name="without an owner the store's LAC counts as the tail",
        invariants=("R2",),
        style="roll",
        seeds=1000,
        parts=planted(StorePort, ("find_tail", "self.find(ref.name).confirmed", "self.find(ref.name).lac_of_store")),
    ),
    Mutant(
        name="the LAC advances and no reader is notified",
        invariants=("R2",),
        parts=planted(LacWatches, ("learn", "self._pacer.ask(at_once=ended)", "pass")),
    ),
    Mutant(
        name="a reader that was notified a moment ago is never notified again",
        invariants=("R2",),
        style="frozen",
        seeds=1000,
        parts=planted(FanoutPacer, ("ask", "call_later(wait_s,", "call_later(1e6,")),
    ),
    Mutant(
        name="one segment's end is applied to another segment",
        invariants=("R2",),
        parts=planted(
            LacWatches,
            (
                "_lac_seen",
                "EntryId(max(lac, question.known)), end is not None",
                "EntryId(max(lac, question.known)), bool(self._ends)",
            ),
        ),
    ),
    Mutant(
        name="a new reader is served from an old list",
        invariants=("R2", "R3", "R4"),
        parts=planted(StreamFeed, ("_get_stream", "and (subscription.has_metadata or self._is_cut_off)", "")),
    ),
)

NEGATIVES = (
    Mutant(
        name="a repeated request joins a fetch that has failed",
        invariants=("R3",),
        parts=planted(
            BlockFetcher,
            (
                "_fetch",
                "finally:\n        self._land(key, flight)",
                "finally:\n        error or self._land(key, flight)",
            ),
        ),
    ),
    Mutant(
        name="a failed fetch of entries is remembered",
        invariants=("R3",),
        parts=planted(
            BlockFetcher,
            ("_fetch", "error = failure", "error = failure\n        self._ways['!' + key] = None"),
            (
                "answer",
                "    payloads = self",
                "    if '!' + key in self._ways:\n"
                "        subscription.send(SourceFailed(question, ReaderClosedError('remembered')))\n"
                "        return\n"
                "    payloads = self",
            ),
        ),
    ),
    Mutant(
        name="the absence of a stream is remembered",
        invariants=("R3",),
        style="trim",
        parts=planted(
            StreamFeed,
            (
                "_get_stream",
                "(subscription.has_metadata or self._is_cut_off)",
                "(subscription.has_metadata or self._metadata.value is None)",
            ),
        ),
    ),
)

FORGETTING = (
    Mutant(
        name="truncated segments stay in the cache until they leave the list",
        invariants=("R4",),
        style="trim",
        parts=planted(StreamFeed, ("_forget", "now.readable_changes_since(before)", "now.changes_since(before)")),
    ),
    Mutant(
        name="entries that were truncated during their fetch stay in the cache",
        invariants=("R4",),
        style="trim",
        parts=planted(
            BlockFetcher,
            ("keep", "now is None or segment_key(now) != key", "False"),
            ("keep", "max(0, now.min_entry - first)", "0"),
        ),
    ),
    Mutant(
        name="a segment truncated between two reads of metadata keeps its first entries in the cache",
        invariants=("R4",),
        style="trim",
        seeds=2000,
        parts=planted(
            StreamFeed, ("_forget", "if new.min_entry > old.min_entry", "elif new.min_entry > old.min_entry")
        ),
    ),
    Mutant(
        name="one entry goes for each that comes, however large",
        invariants=("R5",),
        style="trim",
        parts=planted(EntryCache, ("put", "while self.bytes > self.bytes_max:", "if self.bytes > self.bytes_max:")),
    ),
)

MOVING = (
    Mutant(
        name="a segment that was moved while it was read is damaged",
        invariants=("R3",),
        style="moved",
        parts=planted(StreamReaderMachine, ("_follow_segment", " and not listed.is_move_of(known.segment)", "")),
    ),
)

POSITIONS = (
    Mutant(
        name="a reader that waits for the tail is cut off by a truncation within the segment",
        invariants=("R4",),
        style="trim",
        parts=planted(
            StreamReaderMachine,
            ("_is_cut_off", " or (start is not None and start.is_after_lac)", ""),
            ("_is_cut_off", "if start is not None and start.is_of_tail", "if False"),
        ),
    ),
    Mutant(
        name="a position of an earlier stream of the name is read in the next",
        invariants=("R6",),
        style="lives",
        parts=planted(StreamReaderMachine, ("_open", "self._incarnation = read.incarnation or", "self._incarnation =")),
    ),
    Mutant(
        name="a position that the stream does not reach is waited for",
        invariants=("R6", "R2"),
        style="lives",
        parts=planted(StreamReaderMachine, ("_is_reached", "end is None", "True")),
    ),
    Mutant(
        name="an old list says where the stream ends",
        invariants=("R6",),
        style="lives",
        seeds=2000,
        parts=planted(StreamReaderMachine, ("_is_reached", "if self._lists.has_fresh:", "if True:")),
    ),
    Mutant(
        name="old metadata says that the position belongs to another incarnation",
        invariants=("R6",),
        style="lives",
        seeds=2000,
        parts=planted(StreamReaderMachine, ("_note_stream", "self._stream is not None or fresh", "True")),
    ),
    Mutant(
        name="a LAC from before metadata could be read says where the stream ends",
        invariants=("R6",),
        style="lives",
        seeds=2000,
        parts=planted(StreamReaderMachine, ("_note_stream", "self._start.wanted is not None", "False")),
    ),
)

MUTANTS = (*COHERENCE, *STALENESS, *NEGATIVES, *FORGETTING, *MOVING, *POSITIONS)
