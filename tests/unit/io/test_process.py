"""What a process of this service sets for itself at its start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_POLICY = "import os; from dlog.io import process; {first}; process.give_way(); print(os.sched_getscheduler(0))"


def _policy_after(first: str) -> int:
    told = subprocess.run(
        [sys.executable, "-c", _POLICY.format(first=first)], stdout=subprocess.PIPE, check=True, timeout=60
    )
    return int(told.stdout)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="policies of Linux")
def test_a_process_that_gives_way_is_batch_unless_somebody_chose_otherwise() -> None:
    ordinary = "os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))"
    assert _policy_after(ordinary) == os.SCHED_BATCH
    assert _policy_after(ordinary.replace("OTHER", "IDLE")) == os.SCHED_IDLE
    refused = "os.sched_setscheduler = lambda *_: (_ for _ in ()).throw(PermissionError())"
    assert _policy_after(f"{ordinary}; {refused}") == os.SCHED_OTHER
