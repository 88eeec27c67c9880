"""ZooKeeper is restored from an older snapshot, so segments acknowledged since are in no list any more.

Source: ZOOKEEPER-2832, ZOOKEEPER-4646.

Invariants:
- A proxy that has seen a newer version of a stream's metadata reports that by name and serves nothing of the stream.
- A reader is never told that the log ends where the snapshot ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import dlog
from dlog.client.client import Client
from dlog.errors import BY_CODE, DLogError, MetadataWentBackError
from dlog.events import MetadataWentBack
from dlog.io.seen_versions import SeenVersion
from tests.simulation.kernel import Violation
from tests.simulation.service import drawing, entropy
from tests.simulation.service.loop import Process
from tests.simulation.service.world import World

STREAM = "stream-0"
REFUSED = "refused"


class Cluster:
    """A quiet cluster with two write proxies and a read proxy."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._asked = 0

    def ask(self, work: Callable[[Client], Awaitable[Any]]) -> Any:
        """What a new client receives; REFUSED if the error says that metadata went back."""

        async def run(_: Process) -> Any:
            async with dlog.connect(self.world.work.addresses) as client:
                try:
                    return await work(client)
                except DLogError as error:
                    if "metadata went back" not in error.message:
                        raise
                    return REFUSED

        self._asked += 1
        return self.world.ask(f"near-{self._asked}", run, within_s=120.0, what="a client is answered")

    def append(self, payload: bytes) -> Any:
        return self.ask(lambda client: client.append(STREAM, payload))

    def read(self) -> Any:
        async def all_of_it(client: Client) -> list[bytes]:
            return [record.payload async for record in client.read(STREAM, start=dlog.START, follow=False)]

        return self.ask(all_of_it)

    def hand_over(self) -> None:
        self.ask(lambda client: client.hand_over(STREAM))

    def lose_what_follows(self) -> Callable[[], None]:
        """Take a snapshot. The returned function restores ZooKeeper from it."""
        ensemble = self.world.zookeeper.ensemble
        tree, zxid = ensemble.tree.copy(), ensemble.zxid

        def restore() -> None:
            self.world.zookeeper.kill()
            ensemble.tree, ensemble.zxid = tree, zxid
            self.world.zookeeper.boot()
            session_s = self.world.plan.config["session_s"]
            self.world.loop.run(until_s=self.world.loop.now_s + 10 * session_s)  # sessions that saw more are replaced

        return restore


def play(story: Callable[[Cluster], None]) -> str:
    """Run a scenario to its end. Returns what the simulation's own checks find, "" if nothing."""
    plan = drawing.draw(1, "quiet")
    config = {**plan.config, "drawn": False, "writers": 2, "readers": 1, "clients": 0, "streams": 1}
    world = World(dataclasses.replace(plan, config=config), {})
    loop, violation = world.loop, ""
    with entropy.of(loop):
        try:
            world.boot()
            story(Cluster(world))
            world.heal()
            world.stop()
        except Violation as error:
            violation = str(error)
        left = loop.dispose(world.__dict__.clear, judged=bool(violation))
    assert violation or not left
    return violation


def test_zookeeper_2832_metadata_that_went_back_is_refused_by_who_has_seen_more() -> None:
    answers: list[Any] = []
    told: list[Any] = []

    def story(cluster: Cluster) -> None:
        cluster.append(b"before")
        restore = cluster.lose_what_follows()
        cluster.hand_over()
        cluster.append(b"acknowledged")
        answers.append(cluster.read())
        restore()
        answers.extend((cluster.append(b"after"), cluster.read()))

    with mock.patch("dlog.io.logs.log_event", told.append):
        assert play(story) == ""
    assert answers == [[b"before", b"acknowledged"], REFUSED, REFUSED]
    went_back = [event for event in told if isinstance(event, MetadataWentBack)]
    assert went_back and all(event.epoch < event.epoch_seen for event in went_back)


def test_zookeeper_2832_who_believes_metadata_that_went_back_gives_an_epoch_twice() -> None:
    """Planted defect: metadata is accepted as it is, whatever was seen before."""

    def story(cluster: Cluster) -> None:
        cluster.append(b"before")
        restore = cluster.lose_what_follows()
        cluster.hand_over()
        cluster.append(b"acknowledged")
        restore()
        cluster.append(b"after")

    with mock.patch.object(SeenVersion, "is_older_than", lambda *_: False):
        assert play(story).startswith("T3")


def test_an_owner_whose_own_changes_are_gone_is_no_owner_any_more() -> None:
    """The owner's claim is in the restored metadata, and its later changes are not."""
    answers: list[Any] = []

    def story(cluster: Cluster) -> None:
        cluster.append(b"one")
        restore = cluster.lose_what_follows()
        cluster.ask(lambda client: client.seal(STREAM))
        restore()
        answers.append(cluster.append(b"two"))

    assert play(story) == ""
    assert answers == [REFUSED]


def test_the_error_has_a_number_of_its_own() -> None:
    assert BY_CODE[540] is MetadataWentBackError
