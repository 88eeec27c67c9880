"""Every row of tests/integration/hostile/bad-input.md has exactly one test, and every test has one row."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.integration.hostile.table import DOCUMENT, rows

ROOT = Path(__file__).parents[2]
HOSTILE = "tests/integration/hostile"
_ID = re.compile(r"\[([a-z]+\.[^\]]+)\]$")


def collected(*paths: str) -> list[str]:
    """Node ids of all tests, as pytest names them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *paths]
    plain = {**os.environ, "PYTEST_ADDOPTS": ""}  # a caller's -v changes what is printed
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_every_line_is_a_test_and_every_test_a_line() -> None:
    table = rows()
    twice = [row_id for row_id, count in Counter(row.id for row in table).items() if count > 1]
    assert not twice, "a line is there once"
    elsewhere = [row.id for row in table if row.is_elsewhere]
    nodes = collected(HOSTILE, *sorted({row_id.partition("::")[0] for row_id in elsewhere}))
    assert not [row_id for row_id in elsewhere if not any(n == row_id or n.startswith(f"{row_id}[") for n in nodes)]
    tested = Counter(match[1] for node in nodes if (match := _ID.search(node)) and node.startswith(HOSTILE))
    assert not [row_id for row_id, count in tested.items() if count > 1], "a line has one test"
    here = {row.id for row in table if not row.is_elsewhere}
    assert here == set(tested), {"without a test": here - set(tested), "without a line": set(tested) - here}


def test_the_table_is_read_whole() -> None:
    """No row is skipped because the pattern does not match it."""
    text = DOCUMENT.read_text()
    assert len(rows()) == len([line for line in text.splitlines() if line.startswith("| `")])
    assert len(rows()) > 400
