"""`dlog object fsck` on segments of s3-direct that no stream lists: they are orphans only if a controller answers, and
nothing shows that ZooKeeper went back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from dlog.cli import object_commands
from dlog.cli.discovery import Cluster
from dlog.cli.object_access import ObjectAccess
from dlog.errors import DLogError, MetadataWentBackError
from dlog.model.ids import METADATA_STREAM, WAL_STREAM, Epoch, SegmentNumber, StreamName
from dlog.objects.fsck import Finding, Kind
from dlog.objects.image import Image
from dlog.spark.jobs import audit_orphans
from dlog.spark.jobs.audit_orphans import NamedSegments
from dlog.stores.contract import StoreUnavailableError
from dlog.stores.s3.errors import store_error
from dlog.stores.s3_direct.chunks import Description

CLUSTER = Cluster("", "zookeeper", "/namespace")


@dataclass
class Tail:
    end: int


class Direct:
    """Segments by name: their stream, number, entries, and age in seconds."""

    def __init__(self, chains: dict[str, tuple[str, int, int, float]]) -> None:
        self.chains = chains

    async def age_s(self, name: str) -> float:
        return self.chains[name][3]

    async def describe(self, name: str) -> Description:
        stream, number, *_ = self.chains[name]
        return Description(StreamName(stream), SegmentNumber(number), Epoch(1))

    async def tail(self, name: str) -> Tail:
        return Tail(self.chains[name][2])

    async def folder_of(self, name: str) -> str:
        return f"s3://bucket/{name}"


@dataclass
class Metadata:
    """The controller's answer: an image, or its refusal."""

    answer: Image | DLogError = field(default_factory=Image)

    async def fresh(self) -> Image:
        if isinstance(self.answer, DLogError):
            raise store_error(self.answer)
        return self.answer

    async def read(self) -> Image:
        return Image()


@dataclass
class Store:
    metadata: Metadata


class Stage:
    """What `_unlisted` finds. first: number of the first segment that the metadata stream lists. named: what metadata
    name, read after read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.metadata = Metadata()
        self.has_proxies = True
        self.named: list[NamedSegments] = [NamedSegments()]
        monkeypatch.setattr(audit_orphans, "read_named_segments", self._read)
        monkeypatch.setattr(object_commands, "_first_number", self._first_number)

    async def _read(self, *_: Any) -> NamedSegments:
        return self.named.pop(0) if len(self.named) > 1 else self.named[0]

    async def _first_number(self, _: ObjectAccess) -> int:
        return 5

    def access(self, chains: dict[str, tuple[str, int, int, float]]) -> ObjectAccess:
        given: Any = (None, Direct(chains), Store(self.metadata), True, self.has_proxies)
        return ObjectAccess(*given)

    async def unlisted(self, **chains: tuple[str, int, int, float]) -> tuple[list[Finding], DLogError | None]:
        return await object_commands._unlisted(self.access(chains), CLUSTER, list(chains), 100.0)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


ORPHAN = ("late", 1, 7, 200.0)


async def test_a_segment_that_no_stream_lists_is_an_orphan_in_a_healthy_cluster(stage: Stage) -> None:
    found, obstacle = await stage.unlisted(
        a=ORPHAN,
        truncated=(METADATA_STREAM, 4, 7, 200.0),
        abandoned=(METADATA_STREAM, 6, 0, 200.0),
        never_begun=(WAL_STREAM, 6, 0, 200.0),
        young=("late", 2, 7, 50.0),
    )
    assert [(one.kind, one.place) for one in found] == [
        (Kind.ORPHAN, place) for place in ("a", "truncated", "abandoned", "never_begun")
    ]
    assert obstacle is None


@pytest.mark.parametrize("sign", [(METADATA_STREAM, 5, 1, 0.0), (WAL_STREAM, 1, 1, 0.0)])
async def test_no_segment_is_an_orphan_once_one_of_the_metadata_or_of_a_log_is_lost_however_young(
    stage: Stage, sign: tuple[str, int, int, float]
) -> None:
    found, obstacle = await stage.unlisted(a=ORPHAN, sign=sign)
    assert [(one.kind, one.place) for one in found] == [(Kind.LOST, "a"), (Kind.LOST, "sign")]
    assert "made for late, segment 1: objects in s3://bucket/a" in found[0].why
    assert isinstance(obstacle, MetadataWentBackError)
    assert "docs/restore.md" in obstacle.message and "location=sign" in obstacle.message


async def test_a_segment_that_is_listed_while_it_is_looked_at_shows_no_loss(stage: Stage) -> None:
    stage.named.append(NamedSegments(names={"new"}))
    found, obstacle = await stage.unlisted(a=ORPHAN, new=(METADATA_STREAM, 9, 1, 0.0))
    assert [(one.kind, one.place) for one in found] == [(Kind.ORPHAN, "a")] and obstacle is None


async def test_logs_of_another_namespace_are_neither_orphans_nor_a_loss(stage: Stage) -> None:
    stage.named = [NamedSegments(with_logs={"/namespace", "/other"})]
    assert await stage.unlisted(log=(WAL_STREAM, 1, 1, 200.0)) == ([], None)


async def test_without_a_controller_no_segment_is_judged_and_the_reason_is_told(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.has_proxies = False
    found, obstacle = await stage.unlisted(a=ORPHAN)
    assert not found and isinstance(obstacle, StoreUnavailableError) and "no write proxy runs" in obstacle.message

    stage.has_proxies = True
    stage.metadata.answer = MetadataWentBackError("older than the objects: follow docs/restore.md")
    found, obstacle = await stage.unlisted(a=ORPHAN)
    assert not found and obstacle is stage.metadata.answer
    assert (await stage.access({}).fresh()).version == 0
    assert "which may lag (version 0): older than the objects: follow docs/restore.md" in capsys.readouterr().err
