"""The documentation site: `make docs` builds it, and a broken link, anchor or unlisted page is a failure."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dlog.io.settings import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
PROSE_MAX = 100
PARTS = (
    "docs",
    "dlog",
    "actors",
    "proxies",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "mkdocs.yml",
)


def build(tree: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    built = build(ROOT, directory)
    assert built.returncode == 0, built.stderr
    return directory


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("index.html", "A replicated, durable, ordered log"),
        ("architecture.html", "A record is written"),
        ("reference/configuration.html", "control_records_per_s"),
        ("reference/configuration.html", "[file]"),
        ("reference/configuration.html", "append_bytes_max"),
        ("reference/configuration.html", "stores of segments, the first for streams that name none"),
        ("reference/errors.html", "StreamNotFoundError"),
        ("reference/events.html", "dlog_write_producers_unknown_total"),
        ("reference/cli.html", "dlog bookie gc"),
        ("reference/python.html", "append_batch"),
        ("reference/python.html", "append_deadline_s"),
    ],
)
def test_a_page_is_built(site: Path, page: str, text: str) -> None:
    assert text in (site / page).read_text()


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that makes the reference pages."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    return importlib.import_module("reference")


def test_no_option_is_without_a_meaning(reference: ModuleType) -> None:
    rows = [line for line in reference.configuration().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []
    assert SECTIONS - reference.SECTIONS.keys() == set(), "every section of a configuration file is described"


@pytest.mark.parametrize(("page", "rows_min"), [("errors", 50), ("events", 90)])
def test_every_error_event_and_metric_is_listed_once_with_a_meaning(
    reference: ModuleType, page: str, rows_min: int
) -> None:
    rows = [line for line in getattr(reference, page)().splitlines() if line.startswith("| ")]
    assert len(rows) > rows_min
    assert len(rows) == len(set(rows))
    assert [row for row in rows if row.endswith("|  |")] == []


def test_broken_links_and_anchors_fail(tmp_path: Path) -> None:
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    with (tmp_path / "docs/faq.md").open("a") as page:
        page.write("[gone](no-such-page.md) and [nowhere](limits.md#no-such-anchor)\n")
    built = build(tmp_path, tmp_path / "out")
    assert built.returncode != 0
    assert "no-such-page.md" in built.stderr and "no-such-anchor" in built.stderr


def test_prose_is_at_most_100_characters_wide() -> None:
    """All but tables, headings, code, HTML, and links that are longer than that by themselves."""
    wide = []
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        is_code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            is_prose = not is_code and not line.startswith(("    ", "|", "#", "<"))
            if is_prose and len(line) > PROSE_MAX and " " in line.strip()[:PROSE_MAX]:
                wide.append(f"{page.relative_to(ROOT)}:{number}")
    assert not wide
