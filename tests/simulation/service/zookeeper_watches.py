"""The watches of one ZooKeeper server: which connection gets which event.

Source: `WatchManager`, `DataTree` of ZooKeeper 3.9.

Invariants:
- The module does no I/O.
- Events of a change are sent in the order in which their watches were set.
- A one-shot watch is used up by its event; a persistent one stays; a recursive one gets the events of everything below
  it but not of lists of children.
- One event goes to a connection once, however many of its watches match.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from tests.simulation.service import zookeeper_wire as wire
from tests.simulation.service.zookeeper_tree import AclSet, Change, DataSet, NodeCreated, NodeDeleted, parent_of

ONE_SHOT, PERSISTENT, RECURSIVE = 1, 2, 4  # bits: a connection may have each kind on one path

Watcher = TypeVar("Watcher")
_Table = dict[str, dict[Watcher, int]]


class Watches(Generic[Watcher]):
    """Two tables, as on the server: of znodes and of lists of children."""

    def __init__(self) -> None:
        self._data: _Table[Watcher] = {}
        self._children: _Table[Watcher] = {}

    @property
    def size(self) -> int:
        return sum(map(len, self._data.values())) + sum(map(len, self._children.values()))

    def add_data(self, path: str, watcher: Watcher, mode: int = ONE_SHOT) -> None:
        _add(self._data, path, watcher, mode)

    def add_children(self, path: str, watcher: Watcher, mode: int = ONE_SHOT) -> None:
        _add(self._children, path, watcher, mode)

    def remove(self, path: str, watcher: Watcher, kind: int) -> bool:
        """Remove watches; whether there was any of this kind (see RemoveWatches)."""
        found = False
        for table, is_meant in (
            (self._children, kind in (wire.RemoveWatches.CHILDREN, wire.RemoveWatches.ANY)),
            (self._data, kind in (wire.RemoveWatches.DATA, wire.RemoveWatches.ANY)),
        ):
            if is_meant and watcher in table.get(path, ()):
                _remove(table, path, watcher)
                found = True
        return found

    def forget(self, watcher: Watcher) -> None:
        """Drop all watches of a connection that is gone."""
        for table in (self._data, self._children):
            for path in [path for path, watchers in table.items() if watcher in watchers]:
                _remove(table, path, watcher)

    def events(self, change: Change) -> Iterator[tuple[Watcher, int, str]]:
        """(watcher, kind, path) for each event of a change, in order; one-shot watches are used up."""
        match change:
            case NodeCreated(path):
                yield from _trigger(self._data, wire.CREATED, path)
                yield from _trigger(self._children, wire.CHILDREN_CHANGED, parent_of(path) or "/")
            case NodeDeleted(path):
                told: dict[Watcher, None] = {}
                for watcher, kind, where in _trigger(self._data, wire.DELETED, path):
                    told[watcher] = None
                    yield watcher, kind, where
                for watcher, kind, where in _trigger(self._children, wire.DELETED, path):
                    if watcher not in told:
                        yield watcher, kind, where
                yield from _trigger(self._children, wire.CHILDREN_CHANGED, parent_of(path) or "/")
            case DataSet(path):
                yield from _trigger(self._data, wire.DATA_CHANGED, path)
            case AclSet():
                return


def _add(table: _Table[Watcher], path: str, watcher: Watcher, mode: int) -> None:
    watchers = table.setdefault(path, {})
    watchers[watcher] = watchers.get(watcher, 0) | mode


def _remove(table: _Table[Watcher], path: str, watcher: Watcher) -> None:
    del table[path][watcher]
    if not table[path]:
        del table[path]


def _trigger(table: _Table[Watcher], kind: int, path: str) -> list[tuple[Watcher, int, str]]:
    heard: dict[Watcher, None] = {}
    above = path
    while True:
        for watcher, modes in list(table.get(above, {}).items()):
            if above == path:
                heard[watcher] = None
                if modes == ONE_SHOT:
                    _remove(table, above, watcher)
                else:
                    table[above][watcher] = modes & ~ONE_SHOT
            elif modes & RECURSIVE:
                heard[watcher] = None
        if above == "/":
            return [(watcher, kind, path) for watcher in heard]
        above = parent_of(above) or "/"
