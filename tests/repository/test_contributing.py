"""The commands of CONTRIBUTING.md that a person types beside make."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_seed_is_replayed_as_the_page_says() -> None:
    commands = re.findall(r"(?m)^    python (-m tests\.simulation [^#\n]*)", (ROOT / "CONTRIBUTING.md").read_text())
    assert commands
    for command in commands:
        arguments = [sys.executable, *command.split()]
        result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        assert result.returncode == 0, result.stderr
        assert "trace hash" in result.stdout


def test_make_knows_every_target_the_documents_name() -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    for page in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/operations.md"):
        assert set(re.findall(r"`make ([a-z]+)", (ROOT / page).read_text())) <= targets, page
