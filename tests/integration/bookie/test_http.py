"""Health checks and metrics of a bookie process: when it is ready, with and without ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from tests.integration.bookie.conftest import Make, new_cluster
from tests.integration.bookie.test_disks import until
from tests.ports import free_port

pytestmark = pytest.mark.zookeeper


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body; 0 if nothing listens there."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=90) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}


def test_a_read_only_bookie_is_ready_and_says_so(make_bookie: Make) -> None:
    port, free = free_port(), shutil.disk_usage("/").free
    bookie = make_bookie(http_port=port, disk_free_min_bytes=2 * free, disk_free_reserve_bytes=1).start()
    until(lambda: ask(port, "/ready") == (200, {"ready": True, "read_only": True}))
    assert ask(port, "/live") == (200, {"live": True})
    assert ask(port, "/haproxy") == (404, {"paths": ["/metrics", "/live", "/ready"]})
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=90) as answer:
        assert b'dlog_events_total{event="bookie.read_only"} 1.0\n' in answer.read()
    assert bookie.terminate() == 0
    assert ask(port, "/live") == (0, {})


def test_a_bookie_is_not_ready_without_a_session(make_bookie: Make, own_zookeeper: EmbeddedZooKeeper) -> None:
    port = free_port()
    asyncio.run(own_zookeeper.start())
    make_bookie(zookeeper=new_cluster(own_zookeeper), http_port=port).start()
    until(lambda: ask(port, "/ready") == (200, {"ready": True, "read_only": False}))
    own_zookeeper.kill()
    until(lambda: ask(port, "/ready")[0] == 503)
    assert ask(port, "/ready")[1]["because"].startswith("not registered: metadata out of reach for ")
    assert ask(port, "/live")[0] == 200
    asyncio.run(own_zookeeper.start())
    until(lambda: ask(port, "/ready")[0] == 200)
