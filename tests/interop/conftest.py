"""The Java peers (jars by `make peers`) and the real clusters of ours that they meet."""

from __future__ import annotations

from tests.integration.cluster import bookies, own_bookies
from tests.integration.conftest import zookeeper

__all__ = ["bookies", "own_bookies", "zookeeper"]
