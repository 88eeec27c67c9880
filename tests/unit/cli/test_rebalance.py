"""`dlog cluster rebalance`: what its help says of the old copies."""

from __future__ import annotations

from dataclasses import fields

import pytest

from dlog.bookie.options import BookieOptions
from dlog.cli.main import main


def test_the_help_names_the_option_by_which_a_bookie_frees_old_copies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "rebalance", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "frees its old copy a day or two later (its option gc_moved_s;" in said
    [default] = [field.default for field in fields(BookieOptions) if field.name == "gc_moved_s"]
    assert default == 86_400.0, "a day: the second look frees a copy"
