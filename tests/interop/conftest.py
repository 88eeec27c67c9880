"""The Java peers (jars by `make peers`) and the real clusters of ours that they meet."""

from __future__ import annotations

from tests.integration.cluster import bookies, own_bookies
from tests.integration.conftest import zookeeper
from tests.integration.proxies.conftest import cluster

__all__ = ["bookies", "cluster", "own_bookies", "zookeeper"]
