"""Errors: every number means one thing, and survives the wire."""

from __future__ import annotations

import pytest

from dlog import errors
from dlog.errors import BY_CODE, DLogError, Remedy, from_wire


def classes(root: type[DLogError] = DLogError) -> list[type[DLogError]]:
    """Of dlog/errors.py; stores have more of their own."""
    own = [root] if root.__module__ == errors.__name__ else []
    return own + [deep for sub in root.__subclasses__() for deep in classes(sub)]


@pytest.mark.parametrize("cls", classes(), ids=lambda c: c.__name__)
def test_a_number_is_declared_once_or_inherited(cls: type[DLogError]) -> None:
    """Two classes share a number only if one is the other's parent: to a peer they are the same thing."""
    if "code" in vars(cls):
        assert BY_CODE[cls.code] is cls
    else:
        assert issubclass(cls, BY_CODE[cls.code])


@pytest.mark.parametrize("cls", classes(), ids=lambda c: c.__name__)
def test_every_error_says_what_to_do_and_survives_the_wire(cls: type[DLogError]) -> None:
    assert isinstance(cls.remedy, Remedy)
    assert (cls.__doc__ or "").strip()
    sent = cls("what happened key=1", location="host:1")
    heard = from_wire(sent.code, sent.message, sent.location, sent.outcome_unknown)
    assert (heard.code, heard.remedy, heard.message, heard.location) == (sent.code, sent.remedy, sent.message, "host:1")
    assert heard.outcome_unknown == sent.outcome_unknown
    assert isinstance(sent, type(heard))


def test_an_unknown_number_is_kept() -> None:
    heard = from_wire(599, "from the future")
    assert type(heard) is DLogError and heard.code == 599 and "599" in heard.message
    assert DLogError.code == 500


def test_an_outcome_may_be_unknown_by_circumstance() -> None:
    assert errors.MetadataUnavailableError("x", outcome_unknown=True).outcome_unknown
    assert not errors.ConnectionLostError("x", outcome_unknown=False).outcome_unknown
    assert not from_wire(534, "x", None, False).outcome_unknown


def test_an_error_without_words_names_itself() -> None:
    assert errors.FencedError().message == "FencedError"
