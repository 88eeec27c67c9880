"""Tests the names in `dlog`: every type that a public docstring or signature names is public, to users and to
checkers."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog import errors
from dlog.client.batch_queue import BatchBorrower

_MADE_BY = re.compile(r"\b[Mm]ade by `")
_WORD = re.compile(r"(?<![\w.])(?:dlog\.)?([A-Z][a-z]+(?:[A-Z][a-z]*)*|DLSN|DLogError)\b")


def types_of_ours() -> dict[str, type]:
    """Classes of the packages that an application sees."""
    found: dict[str, type] = {}
    for package in ("dlog.client", "dlog.model"):
        path = importlib.import_module(package).__path__
        for module in pkgutil.iter_modules(path, package + "."):
            found |= _classes(importlib.import_module(module.name))
    return found | _classes(errors)


def _classes(module: Any) -> dict[str, type]:
    return {k: v for k, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__}


def public() -> Iterator[tuple[str, Any]]:
    """Every public object, every public member of it, and its constructor. Left out are BatchBorrower, which a pipeline
    calls on its producer, and the constructors of dataclasses, whose fields say the same, and of classes whose
    docstring says what they are made by."""
    for name in dlog.__all__:
        thing = getattr(dlog, name)
        yield name, thing
        if isinstance(thing, type):
            for member, value in vars(thing).items():
                function = value.fget if isinstance(value, property) else value
                if member == "__init__" and not dataclasses.is_dataclass(thing) and not _MADE_BY.search(_doc(thing)):
                    yield f"{name}.{member}", value
                if not member.startswith("_") and inspect.isfunction(function) and not hasattr(BatchBorrower, member):
                    yield f"{name}.{member}", function


def _doc(thing: Any) -> str:
    return thing.__doc__ or ""


PUBLIC = list(public())
FUNCTIONS = [(name, thing) for name, thing in PUBLIC if inspect.isfunction(thing)]


@pytest.mark.parametrize(("name", "thing"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_every_type_named_in_a_docstring_is_public(name: str, thing: Any) -> None:
    ours = types_of_ours()
    for word in set(_WORD.findall(thing.__doc__ or "")):
        assert word not in ours or word in dlog.__all__, f"{name} names {word}, which is not public"
        if word.endswith("Error"):
            assert word in dlog.__all__ or hasattr(builtins, word), f"{name} names {word}, which does not exist"


@pytest.mark.parametrize(("name", "thing"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_every_type_of_ours_in_a_signature_is_public(name: str, thing: Any) -> None:
    ours = types_of_ours()
    for text in inspect.get_annotations(thing).values():
        for word in set(re.findall(r"\w+", str(text))):
            assert word not in ours or word in dlog.__all__, f"{name} takes or gives {word}, which is not public"


def reachable() -> Iterator[tuple[str, Any]]:
    """Every type of dlog in the annotations of public functions, methods, properties and fields."""
    for name, thing in PUBLIC:
        if isinstance(thing, type) or inspect.isfunction(thing):
            for hint in typing.get_type_hints(thing).values():
                yield from ((name, found) for found in parts_of(hint))


def parts_of(hint: Any) -> Iterator[Any]:
    """The types of dlog that an annotation is made of."""
    module, name = getattr(hint, "__module__", ""), getattr(hint, "__name__", "")
    if module.startswith("dlog.") and not isinstance(hint, typing.TypeVar):
        yield hint
    elif isinstance(hint, type | typing.NewType) or name.startswith("_"):
        return
    for part in typing.get_args(hint):
        yield from parts_of(part) if not isinstance(part, list) else itertools.chain(*map(parts_of, part))


def test_every_type_that_a_public_annotation_reaches_is_public() -> None:
    missing = {(name, part.__name__) for name, part in reachable() if part.__name__ not in dlog.__all__}
    assert not missing
    assert {part.__name__ for _, part in reachable()} > {"DLSN", "BatchResult", "StreamInfo", "Lag", "SegmentNumber"}
    assert ("Regions.__init__", dlog.Topics) in set(reachable())


@pytest.mark.parametrize(("name", "thing"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_every_error_named_under_raises_is_public(name: str, thing: Any) -> None:
    for said in re.findall(r"[Rr]aises? (.*?)(?:\n\n|\Z)", inspect.getdoc(thing) or "", re.DOTALL):
        for word in re.findall(r"\b[A-Z]\w*Error\b", said):
            assert word in dlog.__all__ or hasattr(builtins, word), f"{name} raises {word}, which is not public"


def test_every_error_that_a_client_may_raise_is_public() -> None:
    missing = [cls.__name__ for cls in errors.BY_CODE.values() if cls.__name__ not in dlog.__all__]
    assert missing == []


def test_type_checkers_see_the_same_names() -> None:
    """Type checkers see no other names: a `__getattr__` that they see would let every name pass."""
    tree = ast.parse(Path(dlog.__file__).read_text())
    seen: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            seen = {alias.name for line in node.body if isinstance(line, ast.ImportFrom) for alias in line.names}
    assert seen == set(dlog.__all__)
    assert not [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    assert sorted(dlog.__all__) == sorted(set(dlog.__all__))


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="DoesNotExist"):
        dlog.DoesNotExist  # type: ignore[attr-defined]  # noqa: B018
