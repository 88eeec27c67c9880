"""Invalid sessions against real bookies and proxies: these survive, and a correct client beside them loses nothing."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fuzz.sessions import bookie_frames, proxy_frames, session
from tests.integration.conftest import zookeeper
from tests.integration.hostile.conftest import Bystander, SmallCluster, bookies, bystander, cluster

__all__ = ["bookies", "bystander", "cluster", "zookeeper"]

pytestmark = pytest.mark.zookeeper
SESSIONS = 120


def test_a_seed_of_sessions(cluster: SmallCluster, bystander: Bystander) -> None:
    rng = random.Random(21)
    bookie = cluster.bookies.bookies[0]
    asyncio.run(bystander.work())
    for number in range(SESSIONS):
        session(cluster.writer.address, proxy_frames, rng)
        session(cluster.reader.address, proxy_frames, rng)
        session(bookie.address, bookie_frames, rng)
        if number % 40 == 39:
            asyncio.run(bystander.work())
    for process in (cluster.writer, cluster.reader, bookie):
        assert process.is_running
        assert "Traceback" not in process.log(), process.log()[-3000:]
