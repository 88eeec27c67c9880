"""docs/compatibility.md and the tests against the Java systems: every line has its test, every test its line."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from loadtest.systems.java import BOOKKEEPER, OLD_BOOKKEEPER

ROOT = Path(__file__).parents[2]
_LINE = re.compile(r"(?m)^\| .+ \| `([a-z_]+::test_[a-z0-9_]+)` \|$")


def test_every_line_of_the_page_is_a_test_and_every_test_a_line() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    lines = Counter(_LINE.findall(page))
    assert not [name for name, count in lines.items() if count > 1], "a test has one line"
    tests = {
        f"{path.stem}::{node.name}"
        for path in (ROOT / "tests" / "interop").glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    }
    assert lines.keys() == tests, {"without a test": lines.keys() - tests, "without a line": tests - lines.keys()}
    rows = [line for line in page.splitlines() if line.startswith("| ") and line != "| what | test |"]
    assert len(rows) == len(lines), "a line that the pattern does not take would be nobody's"


def test_the_page_names_the_versions_whose_jars_the_tests_fetch() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    (version,) = re.findall(r"<peer.version>(.+)</peer.version>", BOOKKEEPER.pom.read_text())
    assert f"Apache's published Java code, version {version}:" in page
    assert f"[version {OLD_BOOKKEEPER.version}](#bookkeeper-417)" in page
