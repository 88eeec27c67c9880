"""A machine's story: its last few hundred facts and effects, kept without payloads, told when it dies.

The law of this room: remembering is cheap (a fraction of a microsecond a value), holds no reference to a payload, and
text is made only when somebody reads it. All stories of a process together remember no more than `PAIRS_OF_ALL`: where
thousands of machines live, each remembers its last few facts. A value that can hold no payload is kept as it is; of the
others the fields that name things are kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

PAIRS_OF_ALL = 32_768  # of the order of 300 B each
PAIRS_MIN = 4

_Outliner = Callable[[Any], Any]

_PLAIN = (int, float, str, bool, type(None), Enum)
_BUFFERS = (bytes, bytearray, memoryview)
_IDS = frozenset({"LedgerId", "EntryId", "BookieId", "SegmentNumber", "Epoch", "Txid", "StreamName", "ProxyId"})
_LIGHT = _IDS | {"int", "float", "str", "bool", "None", "Code", "Peer", "Token", "Ticket"}

_outliners: dict[type, _Outliner | None] = {}  # None: kept as it is
_UNKNOWN: Any = object()


class _Share:
    """What one story may remember while so many live."""

    __slots__ = ("living", "pairs")

    def __init__(self) -> None:
        self.living = 0
        self.pairs = PAIRS_OF_ALL

    def count(self, more: int) -> None:
        self.living += more
        self.pairs = max(PAIRS_MIN, PAIRS_OF_ALL // max(1, self.living))


_share = _Share()


class Story:
    """The last (fact, effects) pairs: at most `pairs_max`, and less where many stories live."""

    __slots__ = ("_pairs", "_pairs_max")

    def __init__(self, pairs_max: int = 256) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        self._pairs_max = pairs_max
        _share.count(1)

    def __del__(self) -> None:
        _share.count(-1)

    def note(self, fact: Any, effects: Sequence[Any]) -> None:
        """Remember that `fact` led to `effects`."""
        pairs = self._pairs
        pairs.append((outline(fact), [outline(effect) for effect in effects] if effects else ()))
        if len(pairs) > self._pairs_max or len(pairs) > _share.pairs:
            del pairs[: len(pairs) - min(self._pairs_max, _share.pairs)]

    def __len__(self) -> int:
        return len(self._pairs)

    def text(self, title: str) -> str:
        """Oldest first; effects are indented under their fact."""
        lines = [f"story of {title}, last {len(self._pairs)} facts:"]
        for fact, effects in self._pairs:
            lines.append(f"  {_render(fact)}")
            lines.extend(f"      {_render(effect)}" for effect in effects)
        return "\n".join(lines)


def outline(value: Any) -> Any:
    """The value if it can hold no payload; else what names it, with buffers as their length or left out."""
    cls = value.__class__
    outliner = _outliners.get(cls, _UNKNOWN)
    if outliner is None:
        return value
    if outliner is _UNKNOWN:
        outliner = _outliners[cls] = _make(cls)
        return value if outliner is None else outliner(value)
    return outliner(value)


def _make(cls: type) -> _Outliner | None:
    if issubclass(cls, _PLAIN):
        return None
    if issubclass(cls, _BUFFERS):
        return lambda value: _Bytes(len(value))
    if issubclass(cls, BaseException):
        return lambda value: _Said(f"{cls.__name__}({value})")
    if issubclass(cls, tuple | list):
        return lambda value: [outline(item) for item in value[:16]]
    if dataclasses.is_dataclass(cls):
        return _make_dataclass(cls)
    return lambda value: _Said(f"<{cls.__name__}>")


def _make_dataclass(cls: type) -> _Outliner | None:
    """Judge the fields by their annotations: plain ones are kept, buffers left out, the others outlined."""
    plain: list[str] = []
    nested: list[str] = []
    for f in dataclasses.fields(cls):
        words = str(f.type).replace("|", " ").split()
        if all(word in _LIGHT for word in words):
            plain.append(f.name)
        elif "Buffer" not in str(f.type) and "bytes" not in str(f.type):
            nested.append(f.name)
    if len(plain) == len(dataclasses.fields(cls)):
        return None
    light = _getter(plain)
    if not nested:
        names = (cls.__name__, *plain)
        return lambda value: _Outline(names, light(value))
    heavy = _getter(nested)
    complete = len(plain) + len(nested) == len(dataclasses.fields(cls))
    names = (cls.__name__, *plain, *nested)
    if complete and len(nested) == 1:
        only = attrgetter(nested[0])

        def outline_one(value: Any) -> Any:
            inner = only(value)
            kept = outline(inner)
            return value if kept is inner else _Outline(names, (*light(value), kept))

        return outline_one
    return lambda value: _Outline(names, (*light(value), *[outline(item) for item in heavy(value)]))


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if names:
        one = attrgetter(names[0])
        return lambda value: (one(value),)
    return lambda value: ()


class _Outline:
    """What is left of a dataclass."""

    __slots__ = ("names", "values")

    def __init__(self, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
        self.names = names
        self.values = values


class _Bytes:
    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length

    def __repr__(self) -> str:
        return f"<{self.length} B>"


class _Said(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _render(outlined: Any) -> str:
    if isinstance(outlined, _Outline):
        name, *fields = outlined.names
        shown = ", ".join(f"{key}={_render(item)}" for key, item in zip(fields, outlined.values, strict=True))
        return f"{name}({shown})"
    if isinstance(outlined, list):
        return "[" + ", ".join(_render(item) for item in outlined) + "]"
    return repr(outlined)
