"""Kills of the driver: before, during and after each step of a batch.

After any number of kills at any point, a reader of the copy finds each record once and in order, and no stage is left.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.spark.killing import IN_DRIVER
from tests.integration.spark.lake import Lake
from tests.integration.spark.ordeals import APPENDED, STAGED, Ordeal

pytestmark = pytest.mark.long


def test_drivers_are_killed_wherever_they_are(lake: Lake, tmp_path: Path) -> None:
    """Drivers are killed at each point with each way to publish; each restart has another number of partitions."""
    ordeal = Ordeal(lake, tmp_path, 9)
    deaths = [(point, way) for way in (STAGED, APPENDED) for point in ("behind the stage", *IN_DRIVER)]
    for batch, (point, _) in enumerate(deaths):
        ordeal.plan(batch, point, "driver")
    for died, (_, way) in enumerate(deaths):
        assert ordeal.run(partitions=1 + died % 3, append_bytes=way) != 0, "it was to die"
        assert ordeal.killed == died + 1
    assert ordeal.run() == 0, ordeal.printed.read_text()[-3000:]
    ordeal.judge()
