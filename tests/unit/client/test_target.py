"""Tests which cluster `connect` uses when none is named."""

from __future__ import annotations

import pytest

from dlog.client.address import target_addresses
from dlog.errors import InvalidRequestError


def test_a_target_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_CONNECT", "dlog://a:1")
    assert target_addresses("b:2") == ("b:2",)
    assert target_addresses(None) == ("a:1",)


def test_without_either_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLOG_CONNECT", raising=False)
    with pytest.raises(InvalidRequestError, match="DLOG_CONNECT"):
        target_addresses(None)
