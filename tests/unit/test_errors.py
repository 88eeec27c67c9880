"""Tests errors: every number means one thing, and survives the wire."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

import pytest

import actors
import dlog
import proxies
from dlog import errors
from dlog.errors import DLogError, Remedy, from_wire

HOMES = ("dlog", "actors", "proxies")


def everywhere(root: type[DLogError] = DLogError) -> list[type[DLogError]]:
    """Every class of the code base."""
    return [root, *(deep for sub in root.__subclasses__() for deep in everywhere(sub))]


def classes() -> list[type[DLogError]]:
    """The classes of dlog/errors.py that are raised; EndedError is only a base class."""
    return [cls for cls in everywhere() if cls.__module__ == errors.__name__ and cls is not errors.EndedError]


def test_a_number_belongs_to_one_class_of_the_whole_code_base() -> None:
    for package in (dlog, actors, proxies):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.startswith("dlog.spark") and not module.name.endswith("__main__"):  # needs Spark
                importlib.import_module(module.name)
    numbers = Counter(cls.code for cls in everywhere() if "code" in vars(cls) and cls.__module__.split(".")[0] in HOMES)
    assert [number for number, count in numbers.items() if count > 1] == []


@pytest.mark.parametrize("cls", classes(), ids=lambda c: c.__name__)
def test_whoever_hears_a_number_raises_the_class_that_was_told(cls: type[DLogError]) -> None:
    """A handler written by the docstring catches what a client raises."""
    assert "code" in vars(cls)
    assert type(from_wire(cls.code, "x")) is cls


@pytest.mark.parametrize("cls", classes(), ids=lambda c: c.__name__)
def test_every_error_says_what_to_do_and_survives_the_wire(cls: type[DLogError]) -> None:
    assert isinstance(cls.remedy, Remedy)
    assert (cls.__doc__ or "").strip()
    sent = cls("what happened key=1", location="host:1")
    heard = from_wire(sent.code, sent.message, sent.location, sent.outcome_unknown)
    assert (heard.code, heard.remedy, heard.message, heard.location) == (sent.code, sent.remedy, sent.message, "host:1")
    assert heard.outcome_unknown == sent.outcome_unknown
    assert type(sent) is type(heard)


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
