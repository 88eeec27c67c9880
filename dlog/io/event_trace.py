"""Event trace of a state machine: its last few hundred facts and effects without payloads, printed when it fails.

Invariants:
- Recording costs about a microsecond per value, so a driver records the last facts of a turn only. No reference to a
  payload is kept; text is made on request.
- All traces of a process together keep about `PAIRS_OF_ALL` pairs; an idle trace gives up its share when more machines
  exist.
- A value that cannot hold a payload is kept as it is; of any other the fields that identify things are kept.

With so many machines that each could keep fewer than DETAILED_MIN facts, only the types of facts and effects are kept.
Equal tuples of types are one object, so that a fact gives the garbage collector nothing to visit: in a proxy that
writes to a thousand streams, outlines took a fifth of its CPU time.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from dlog.machine import Asked, Received

PAIRS_OF_ALL = 16_384  # of about 600 B each
PAIRS_MIN = 1
DETAILED_MIN = 32
KINDS_MAX = 16  # facts kept if only types are kept
EFFECTS_MAX = 4  # effect types kept with each of them

_Outliner = Callable[[Any], Any]
_Kinds = tuple[type, ...]  # types of a fact, of its message or request, and of its effects

_PLAIN = (int, float, str, bool, type(None), Enum)
_BUFFERS = (bytes, bytearray, memoryview)
_IDS = frozenset({"LedgerId", "EntryId", "BookieId", "SegmentNumber", "Epoch", "Txid", "StreamName", "ProxyId"})
_LIGHT = _IDS | {"int", "float", "str", "bool", "None", "Code", "Peer", "Token", "Ticket"}

_outliners: dict[type, _Outliner | None] = {}  # None: kept as it is
_kinds: dict[_Kinds, _Kinds] = {}  # interned; bounded by the combinations of fact and effect types


class _Share:
    """How many pairs each trace may keep, given how many traces exist."""

    __slots__ = ("_asked", "living", "pairs", "stories")

    def __init__(self) -> None:
        self.living = 0
        self.pairs = PAIRS_OF_ALL
        self.stories: weakref.WeakSet[EventTrace] = weakref.WeakSet()  # that keep more than PAIRS_MIN: 300 B each
        self._asked = PAIRS_OF_ALL  # the limit to which all traces were last trimmed

    def count(self, more: int) -> None:
        self.living += more
        self.pairs = max(PAIRS_MIN, PAIRS_OF_ALL // max(1, self.living))
        if self.pairs >= 2 * self._asked:
            self._asked = self.pairs
        elif self.pairs * 2 <= self._asked:  # whenever the number of traces doubles: each is trimmed a few times in all
            self._asked = self.pairs
            stories, self.stories = self.stories, weakref.WeakSet()
            for story in stories:
                story.forget()
                if len(story) > PAIRS_MIN:
                    self.stories.add(story)


_share = _Share()


class EventTrace:
    """The last (fact, effects) pairs: at most `pairs_max` and an eighth, fewer if many traces exist."""

    __slots__ = ("__weakref__", "_pairs", "_pairs_max")

    def __init__(self, pairs_max: int = 256) -> None:
        self._pairs: list[Any] = []  # (fact, effects), or their _Kinds
        self._pairs_max = pairs_max
        _share.count(1)

    def __del__(self) -> None:
        _share.count(-1)

    def note(self, fact: Any, effects: Sequence[Any]) -> None:
        """Record that `fact` led to `effects`."""
        pairs = self._pairs
        if _share.pairs < DETAILED_MIN:
            pairs.append(_kinds_of(fact, effects))
            if len(pairs) > KINDS_MAX + (KINDS_MAX >> 3):
                del pairs[:-KINDS_MAX]
            return
        get = _outliners.get
        outliner = get(fact.__class__, outline)
        outlined: list[Any] | tuple[()] = ()
        if effects:
            outlined = []
            for effect in effects:
                outline_it = get(effect.__class__, outline)
                outlined.append(effect if outline_it is None else outline_it(effect))
        pairs.append((fact if outliner is None else outliner(fact), outlined))
        most = self._pairs_max if self._pairs_max < _share.pairs else _share.pairs
        if len(pairs) > most + (most >> 3):  # in bulk, because each deletion moves all pairs that stay
            del pairs[: len(pairs) - most]
        elif len(pairs) == PAIRS_MIN + 1:
            _share.stories.add(self)

    def forget(self) -> None:
        """Trim to the present limit."""
        del self._pairs[: max(0, len(self._pairs) - min(self._pairs_max, _share.pairs))]

    def __len__(self) -> int:
        return len(self._pairs)

    def text(self, title: str) -> str:
        """Return the trace as text, oldest first; effects are indented under their fact."""
        lines = [f"event trace of {title}, last {len(self._pairs)} facts:"]
        for pair in self._pairs:
            if isinstance(pair[0], type):
                fact, brought, *led_to = pair
                of_what = "" if brought is type(None) else f" of {brought.__name__}"
                lines.append(f"  {fact.__name__}{of_what}: {', '.join(kind.__name__ for kind in led_to) or 'nothing'}")
                continue
            outlined, effects = pair
            lines.append(f"  {_render(outlined)}")
            lines.extend(f"      {_render(effect)}" for effect in effects)
        return "\n".join(lines)


def _kinds_of(fact: Any, effects: Sequence[Any]) -> _Kinds:
    cls = fact.__class__
    brought = fact.message if cls is Received else fact.request if cls is Asked else None
    kinds: _Kinds = (cls, brought.__class__)
    if effects:
        kinds = (*kinds, *map(type, effects[:EFFECTS_MAX]))
    return _kinds.setdefault(kinds, kinds)


def outline(value: Any) -> Any:
    """The value if it cannot hold a payload; else its identifying fields, with buffers as their length or left out."""
    cls = value.__class__
    if cls in _outliners:
        outliner = _outliners[cls]
    else:
        outliner = _outliners[cls] = _make(cls)
    return value if outliner is None else outliner(value)


def _make(cls: type) -> _Outliner | None:
    if issubclass(cls, _PLAIN):
        return None
    if issubclass(cls, _BUFFERS):
        return lambda value: _Bytes(len(value))
    if issubclass(cls, BaseException):
        return lambda value: _Text(f"{cls.__name__}({value})")
    if issubclass(cls, tuple) and _holds_plain_fields(cls):
        return None
    if issubclass(cls, tuple | list):
        return lambda value: [outline(item) for item in value[:16]]
    if dataclasses.is_dataclass(cls):
        return _make_dataclass(cls)
    return lambda value: _Text(f"<{cls.__name__}>")


def _holds_plain_fields(cls: type) -> bool:
    """Whether this is a named tuple of plain fields, by their annotations."""
    kinds = getattr(cls, "__annotations__", {})
    names = getattr(cls, "_fields", ())
    return bool(names) and all(_is_plain(kinds.get(name)) for name in names)


def _is_plain(kind: Any) -> bool:
    text = kind if isinstance(kind, str) else str(getattr(kind, "__forward_arg__", ""))
    words = text.replace("tuple[int, int]", "int").replace("|", " ").split()
    return bool(words) and all(word in _LIGHT for word in words)


def _make_dataclass(cls: type) -> _Outliner | None:
    """Decide by the fields' annotations: plain fields are kept, buffers left out, others outlined."""
    plain: list[str] = []
    nested: list[str] = []
    for f in dataclasses.fields(cls):
        if _is_plain(f.type):
            plain.append(f.name)
        elif "Buffer" not in str(f.type) and "bytes" not in str(f.type):
            nested.append(f.name)
    if len(plain) == len(dataclasses.fields(cls)):
        return None
    light = _getter(plain)
    if not nested:
        names = (cls.__name__, *plain)
        return lambda value: _outlined((names, light(value)))
    heavy = _getter(nested)
    complete = len(plain) + len(nested) == len(dataclasses.fields(cls))
    names = (cls.__name__, *plain, *nested)
    if complete and len(nested) == 1:
        only, get = attrgetter(nested[0]), _outliners.get

        def outline_one(value: Any) -> Any:
            inner = only(value)
            outliner = get(inner.__class__, outline)
            if outliner is None:
                return value
            kept = outliner(inner)
            return value if kept is inner else _outlined((names, (*light(value), kept)))

        return outline_one
    return lambda value: _outlined((names, (*light(value), *[outline(item) for item in heavy(value)])))


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if names:
        one = attrgetter(names[0])
        return lambda value: (one(value),)
    return lambda value: ()


class _Outline(NamedTuple):
    """The kept fields of a dataclass."""

    names: tuple[str, ...]
    values: tuple[Any, ...]


_outlined: Callable[[tuple[Any, Any]], _Outline] = partial(tuple.__new__, _Outline)  # 3x as fast


class _Bytes:
    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length

    def __repr__(self) -> str:
        return f"<{self.length} B>"


class _Text(str):
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
