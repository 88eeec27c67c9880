"""Rounds over streams without an owner: remaining deletions are done, or the stream gets an owner, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dlog.errors import MetadataUnavailableError, UnavailableError
from dlog.io.metadata import ProxyInfo, StreamHead
from dlog.machine import Missing, Versioned
from dlog.model.ids import EntryId, Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata, StreamSettings
from proxies.write import upkeep
from proxies.write.upkeep import Upkeep
from tests import memory_metadata
from tests.memory_metadata import MemoryMetadata

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
ME = ProxyId("me")


class TwoHoursAgo:
    """Metadata's clock, when the segments were completed."""

    def unix_ms(self) -> int:
        return NOW_MS - 2 * HOUR_MS

    def monotonic_s(self) -> float:
        return 0.0


class Round:
    """Metadata, the streams that were taken over and finished, and the proxies registered beside this one."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadata(clock=TwoHoursAgo())
        self.taken: list[str] = []
        self.finished: list[str] = []
        self.uploads = 0
        self.held: set[str] = set()
        self.elsewhere: set[str] = set()
        self.error: Exception | None = None
        self.upkeep = Upkeep(
            ME,
            self.metadata,
            self,
            preferred=lambda stream: "other:1" if stream in self.elsewhere else None,
            finish=self._finish,
            upload=self._upload,
            unix_ms=lambda: NOW_MS,
            every_s=1.0,
            rng=random.Random(1),
        )

    async def _upload(self) -> None:
        self.uploads += 1

    def find(self, stream: str) -> object | None:
        return stream if stream in self.held else None

    async def ask(self, stream: str, request: None) -> object:
        self.taken.append(stream)
        if self.error is not None:
            raise self.error
        return None

    async def _finish(self, stream: StreamName) -> None:
        self.finished.append(stream)

    async def make(self, name: str, segments: int = 3, *, retention_s: float = 0.0, owner: Owner | None = None) -> None:
        """Create a stream of completed segments, two hours old, and one in progress."""
        value = StreamMetadata(
            name=StreamName(name),
            segments=tuple(segment(number, completed=number < segments) for number in range(1, segments + 1)),
            settings=StreamSettings(retention_s=retention_s),
            owner=owner or Owner(),
        )
        assert isinstance(await self.metadata.compare_and_set(StreamKey(value.name), value, None), Versioned)

    async def change(self, name: str, **changes: object) -> None:
        seen = await self.metadata.read(StreamKey(StreamName(name)))
        assert isinstance(seen, Versioned)
        value = replace(seen.value, **changes)
        await self.metadata.compare_and_set(StreamKey(value.name), value, seen.version)


def segment(number: int, *, completed: bool) -> Segment:
    return Segment(
        number=SegmentNumber(number),
        name=str(number),
        first_txid=Txid(0),
        completed=completed,
        last_entry=EntryId(0 if completed else -1),
        completed_unix_ms=NOW_MS - 2 * HOUR_MS if completed else 0,
    )


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PAUSE_S", 0.0)


async def test_expired_and_truncated_segments_and_deleted_streams_are_seen_to() -> None:
    on = Round()
    for name, retention_s in (("kept", 0.0), ("young", 3 * 3600.0), ("expired", 3600.0), ("truncated", 0.0)):
        await on.make(name, retention_s=retention_s)
    seen = await on.metadata.read(StreamKey(StreamName("truncated")))
    assert isinstance(seen, Versioned)
    await on.metadata.compare_and_set(
        StreamKey(StreamName("truncated")), seen.value.with_truncated_before(2), seen.version
    )
    await on.make("deleted")
    await on.change("deleted", owner=Owner(epoch=Epoch(1), deleted=True))
    assert isinstance(await on.metadata.read(StreamKey(StreamName("deleted"))), Missing)
    await on.upkeep.look()
    assert (sorted(on.taken), on.finished) == (["expired", "truncated"], ["deleted"])


async def test_a_stream_that_has_an_owner_or_belongs_to_another_proxy_is_left_alone() -> None:
    on = Round()
    other = ProxyId("other")
    await on.metadata.register_proxy(ProxyInfo(other, "write", "other:1", "other:1"))
    owners = {
        "owned": Owner(epoch=Epoch(1), proxy=other),
        "released": Owner(epoch=Epoch(1), proxy=other, released=True),
        "of-a-dead-proxy": Owner(epoch=Epoch(1), proxy=ProxyId("dead")),
        "forgotten-by-us": Owner(epoch=Epoch(1), proxy=ME),
    }
    for name, owner in owners.items():
        await on.make(name, retention_s=3600.0, owner=owner)
    for name in ("held", "elsewhere"):
        await on.make(name, retention_s=3600.0)
    on.held.add("held")
    on.elsewhere.add("elsewhere")
    await on.upkeep.look()
    assert sorted(on.taken) == ["forgotten-by-us", "of-a-dead-proxy", "released"]


async def test_a_stream_that_this_proxy_claimed_in_an_earlier_life_is_seen_to_whatever_the_ring_says() -> None:
    """To every other proxy this one is its registered owner, so no other proxy may claim it."""
    on = Round()
    await on.make("forgotten-by-us", retention_s=3600.0, owner=Owner(epoch=Epoch(1), proxy=ME))
    await on.make("handed-back-by-us", retention_s=3600.0, owner=Owner(epoch=Epoch(1), proxy=ME, released=True))
    await on.make("deleted-by-us")
    await on.change("deleted-by-us", owner=Owner(epoch=Epoch(1), proxy=ME, deleted=True))
    on.elsewhere |= {"forgotten-by-us", "handed-back-by-us", "deleted-by-us"}
    await on.upkeep.look()
    assert (on.taken, on.finished) == (["forgotten-by-us"], [])


async def test_the_last_segment_never_expires() -> None:
    on = Round()
    await on.make("one", segments=1, retention_s=3600.0)
    await on.make("none", segments=0, retention_s=3600.0)
    await on.upkeep.look()
    assert not on.taken


async def test_what_fails_for_one_stream_stops_no_other() -> None:
    on = Round()
    for name in ("a", "b", "c"):
        await on.make(name, retention_s=3600.0)
    on.error = UnavailableError("no bookies")
    await on.upkeep.look()
    assert on.taken == ["a", "b", "c"]


async def test_a_round_asks_for_a_hundred_streams_at_once() -> None:
    on, asked = Round(), list[int]()

    class Counted(MemoryMetadata):
        async def stream_heads(self, streams: Sequence[StreamName]) -> list[StreamHead | None]:
            asked.append(len(streams))
            return await super().stream_heads(streams)

    on.metadata.__class__ = Counted
    for number in range(250):
        await on.make(f"s{number}", segments=1)
    await on.upkeep.look()
    assert asked == [100, 100, 50] and not on.taken


async def test_a_round_without_metadata_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    on, rounds = Round(), 0

    class Enough(Exception):
        pass

    async def streams(self: MemoryMetadata) -> list[StreamName]:
        nonlocal rounds
        rounds += 1
        if rounds > 2:
            raise Enough
        raise MetadataUnavailableError("away")

    monkeypatch.setattr(memory_metadata.MemoryMetadata, "streams", streams)
    on.upkeep._every_s = 0.0
    with pytest.raises(Enough):
        await on.upkeep.run()
    assert rounds == 3
