"""Tests that retiring a sink fences the stream that it staged for, and not the next stream of the name."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlog.errors import StreamNotFoundError
from dlog.machine import Versioned
from dlog.model.ids import StreamName
from dlog.model.segment import StreamMetadata
from dlog.model.sink import SinkBatch, SinkRecord
from dlog.spark import retiring

NAME = StreamName("s")


class Recreated:
    """A cluster with a stream for which a sink staged once, and which may be deleted and created again.

    after: is called with the name of each step that was done. staged_for: the incarnation in the registration.
    """

    def __init__(self, staged_for: str = "first", after: Callable[[Recreated, str], None] = lambda _, __: None) -> None:
        self.stream = StreamMetadata(name=NAME, incarnation="first").with_sink(SinkRecord(SinkBatch("k", 4, "q", 0)))
        self.fenced: list[tuple[str, int]] = []
        self.metadata = SimpleNamespace(zookeeper=self, read=self.read)
        self._after = after
        self._registration = {"stream": "s", "query": "q", "batch": 0, "unix_ms": 1, "epoch": 2, "life": staged_for}

    def recreate(self) -> None:
        self.stream = StreamMetadata(name=NAME, incarnation="second")

    async def retire(self, monkeypatch: pytest.MonkeyPatch) -> retiring.Retired:
        async def proxies_of(*_: object) -> Recreated:
            return self

        async def sweep(*_: object, **__: object) -> int:
            return 1

        monkeypatch.setattr(retiring, "proxies_of", proxies_of)
        monkeypatch.setattr(retiring, "sweep", sweep)
        return await retiring.retire(cast(Any, self), "/ns", "k")

    # ---- metadata ---------------------------------------------------------------------------------------------------

    async def children(self, path: str, *, fresh: bool) -> tuple[list[str], None]:
        return ["stage-7"], None

    async def get(self, path: str, *, fresh: bool) -> tuple[bytes, Any]:
        return json.dumps(self._registration).encode(), SimpleNamespace(version=0)

    async def delete(self, path: str, version: int) -> None:
        self._after(self, "delete")

    async def read(self, key: object) -> Versioned:
        found = Versioned(self.stream, 1)
        self._after(self, "read")
        return found

    def store(self, name: str) -> None:
        assert name == "ledger"

    # ---- client -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Recreated:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def incarnation(self, stream: str) -> str:
        found = self.stream.incarnation
        self._after(self, "incarnation")
        return found

    async def import_segments(
        self, stream: str, parts: object, batch: SinkBatch, *, incarnation: str | None = None
    ) -> None:
        if incarnation not in (None, self.stream.incarnation):
            raise StreamNotFoundError("the stream was deleted and created again")
        self.fenced.append((self.stream.incarnation, batch.epoch))


@pytest.mark.parametrize("staged_for", ["first", ""])
async def test_the_stream_that_was_staged_for_refuses_every_epoch_so_far(
    monkeypatch: pytest.MonkeyPatch, staged_for: str
) -> None:
    cluster = Recreated(staged_for)
    done = await cluster.retire(monkeypatch)
    assert cluster.fenced == [("first", 5)]
    assert (done.epoch, done.streams, done.swept, done.left) == (5, ("s",), 1, {})


@pytest.mark.parametrize("step", ["incarnation", "read"])
async def test_a_stream_that_is_recreated_between_two_steps_is_not_fenced(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    cluster = Recreated(after=lambda one, done: one.recreate() if done == step else None)
    done = await cluster.retire(monkeypatch)
    assert cluster.fenced == [] and done.left == {}


async def test_the_next_stream_of_the_name_is_not_fenced_for_stages_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Recreated()
    cluster.recreate()
    done = await cluster.retire(monkeypatch)
    assert cluster.fenced == [] and done.left == {}
