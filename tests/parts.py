"""Third-party parts that a test needs: present, or named at the end of the run with the way to get them.

With CI=true a missing part fails the test; elsewhere the test is skipped and the run's last lines name it.
"""

from __future__ import annotations

import os

import pytest

MISSING: dict[str, str] = {}  # part -> how to get it


def need(present: bool, part: str, how: str) -> None:
    """Return if the part is present; otherwise fail (CI) or skip, and name the part at the end of the run."""
    if present:
        return
    MISSING[part] = how
    message = f"{part} is missing: {how}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
