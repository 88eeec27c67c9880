"""A cluster of bookies for tests that add, replace and empty them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from tests.integration.cluster import BookieCluster, start_bookies
from tests.integration.leftovers import remove_data


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> Iterator[BookieCluster]:
    """Three bookies; tests add more."""
    made = start_bookies(zookeeper, tmp_path / "bookies")
    yield made
    made.close()
    remove_data(tmp_path)
