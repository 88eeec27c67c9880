"""What `dlog create` and `dlog show` say of a stream's settings."""

from __future__ import annotations

import pytest

from dlog.cli.streams import retention_text
from dlog.model.segment import StreamSettings


def test_a_stream_is_kept_for_ever_unless_somebody_says_otherwise() -> None:
    assert StreamSettings().retention_s == 0


@pytest.mark.parametrize(
    ("retention_s", "text"),
    [(0.0, "kept for ever"), (0, "kept for ever"), (259200.0, "kept for 3d"), (1.5, "kept for 1.5s")],
)
def test_retention_in_words(retention_s: float, text: str) -> None:
    assert retention_text(retention_s) == text
