"""What bookies of tests leave behind: most of a gigabyte a cluster, which nobody reads once it has ended."""

from __future__ import annotations

import shutil
from pathlib import Path

#: of a bookie that is to write little: files are written ahead as a whole, three at a time
JOURNAL_FILE_BYTES = 16 << 20


def remove_data(cluster: Path) -> None:
    """Remove what the bookies of an ended cluster keep; logs stay, for whom a test failed."""
    for bookie in cluster.glob("bookie-*"):
        for kept in ("journal", "ledgers"):
            shutil.rmtree(bookie / kept, ignore_errors=True)
