"""The planted defects of entries in version 0 are caught by the histories of that style."""

from __future__ import annotations

import pytest

from tests.simulation.judging import check_is_caught
from tests.simulation.mutants.region_plain import PLAIN_MUTANTS
from tests.simulation.region_world import room
from tests.simulation.worlds import Mutant


@pytest.mark.parametrize("mutant", PLAIN_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught(mutant: Mutant) -> None:
    check_is_caught(room(), mutant)
