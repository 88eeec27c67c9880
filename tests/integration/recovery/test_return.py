"""A bookie that was frozen longer than its ZooKeeper session lasts comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dlog.io.decommission import decommission
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import BookieId
from tests.integration.bookie.process import BookieProcess
from tests.integration.recovery.polling import until

pytestmark = [pytest.mark.zookeeper, pytest.mark.real_time]
NAMESPACE = "/dlog"


async def test_only_one_that_was_not_taken_out_of_the_cluster_registers_again(
    zookeeper_hosts: str, tmp_path: Path
) -> None:
    await cluster_init(zookeeper_hosts, NAMESPACE)
    frozen = [BookieProcess(tmp_path / name, zookeeper_hosts, namespace=NAMESPACE) for name in ("out", "kept")]
    try:
        out, kept = (BookieId(bookie.start().id) for bookie in frozen)
        for bookie in frozen:
            os.kill(bookie.pid, signal.SIGSTOP)
        async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as metadata:

            async def are_registered(bookies: set[BookieId]) -> bool:
                return {*(await metadata.members()).writable} == bookies

            await until(lambda: are_registered(set()))
            await decommission(metadata, out, lambda _: None)
            for bookie in frozen:
                os.kill(bookie.pid, signal.SIGCONT)
            assert frozen[0].wait() == 1
            await until(lambda: are_registered({kept}))
        (told,) = frozen[0].events("bookie.refused")
        assert told["level"] == "error" and "taken out of the cluster" in told["reason"]
        last = frozen[0].log.read_text().splitlines()[-1]
        assert "CookieError" in last and "start a new bookie on empty directories" in last
        assert "no cookie" in frozen[0].refusal(), "nor does it start again"
        assert not frozen[1].events("bookie.refused")
    finally:
        for bookie in frozen:
            bookie.kill()
