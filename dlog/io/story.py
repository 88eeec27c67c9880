"""A machine's story: its last few hundred facts and effects, kept without payloads, told when it dies.

The law of this room: remembering is cheap (well under a microsecond a value), holds no reference to a payload, and
text is made only when somebody reads it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from operator import attrgetter
from typing import Any

_PLAIN = (int, float, str, bool, type(None), Enum)
_BUFFERS = (bytes, bytearray, memoryview)
_outliners: dict[type, Callable[[Any], Any]] = {}


class Story:
    """A ring of (fact, effects) pairs."""

    __slots__ = ("_ring",)

    def __init__(self, pairs_max: int = 256) -> None:
        self._ring: deque[tuple[Any, tuple[Any, ...]]] = deque(maxlen=pairs_max)

    def note(self, fact: Any, effects: Iterable[Any]) -> None:
        """Remember that `fact` led to `effects`."""
        self._ring.append((outline(fact), tuple([outline(effect) for effect in effects])))

    def __len__(self) -> int:
        return len(self._ring)

    def text(self, title: str) -> str:
        """Oldest first; effects are indented under their fact."""
        lines = [f"story of {title}, last {len(self._ring)} facts:"]
        for fact, effects in self._ring:
            lines.append(f"  {_render(fact)}")
            lines.extend(f"      {_render(effect)}" for effect in effects)
        return "\n".join(lines)


def outline(value: Any) -> Any:
    """The value without its payloads: buffers become their length, dataclasses a tuple of their light fields."""
    cls = value.__class__
    outliner = _outliners.get(cls)
    if outliner is None:
        outliner = _outliners[cls] = _make(cls)
    return outliner(value)


def _make(cls: type) -> Callable[[Any], Any]:
    if issubclass(cls, _PLAIN):
        return lambda value: value
    if issubclass(cls, _BUFFERS):
        return lambda value: _Bytes(len(value))
    if issubclass(cls, BaseException):
        return lambda value: _Said(f"{cls.__name__}({value})")
    if issubclass(cls, tuple | list):
        return lambda value: tuple([outline(item) for item in value[:16]])
    if dataclasses.is_dataclass(cls):
        return _make_dataclass(cls)
    return lambda value: _Said(f"<{cls.__name__}>")


def _make_dataclass(cls: type) -> Callable[[Any], Any]:
    """Fields whose annotation names plain types are kept by one attrgetter; the others are outlined one by one."""
    plain: list[str] = []
    nested: list[str] = []
    for f in dataclasses.fields(cls):
        words = str(f.type).replace("|", " ").split()
        (plain if all(word in _LIGHT for word in words) else nested).append(f.name)
    names = (cls.__name__, *plain, *nested)
    light: Callable[[Any], tuple[Any, ...]]
    if not plain:
        light = lambda _: ()  # noqa: E731
    elif len(plain) == 1:
        one = attrgetter(plain[0])
        light = lambda value: (one(value),)  # noqa: E731
    else:
        light = attrgetter(*plain)
    if not nested:
        return lambda value: (names, *light(value))
    if len(nested) == 1:
        only = attrgetter(nested[0])
        return lambda value: (names, *light(value), outline(only(value)))
    heavy = attrgetter(*nested)
    return lambda value: (names, *light(value), *[outline(item) for item in heavy(value)])


_IDS = frozenset({"LedgerId", "EntryId", "BookieId", "SegmentNumber", "Epoch", "Txid", "StreamName", "ProxyId"})
_LIGHT = _IDS | {"int", "float", "str", "bool", "None", "Code", "Peer", "Token", "Ticket"}


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
    if not isinstance(outlined, tuple):
        return repr(outlined)
    if outlined and isinstance(outlined[0], tuple):
        name, *fields = outlined[0]
        shown = ", ".join(f"{key}={_render(item)}" for key, item in zip(fields, outlined[1:], strict=True))
        return f"{name}({shown})"
    return "(" + ", ".join(_render(item) for item in outlined) + ")"
