"""Removes the data of test bookies: most of a gigabyte per cluster, which is not needed once it has ended."""

from __future__ import annotations

import shutil
from pathlib import Path

#: for a bookie that writes little: journal files are allocated as a whole in advance, three at a time
JOURNAL_FILE_BYTES = 16 << 20


def remove_data(cluster: Path) -> None:
    """Remove the data of bookies of an ended cluster; logs stay, for failed tests."""
    for bookie in cluster.glob("bookie-*"):
        for kept in ("journal", "ledgers"):
            shutil.rmtree(bookie / kept, ignore_errors=True)
