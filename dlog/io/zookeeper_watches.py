"""The watches of one session: the subscriptions of this process, and the watches set at the server for them.

Invariants:
- A subscription lasts until it is withdrawn, though the server's watches are one-shot.
- On an event the watch is set again before subscribers are called, so that a change after a callback's read leads to
  another call.
- A new connection is given the zxid up to which every watch has reported, and the server fires missed ones; that zxid
  advances only on a connection on which all watches were set again.
- Tree watches (persistent, recursive) are only set again, many in one packet; subscribers must assume any change.
- A watch that the server refuses (no right to read) is requested again; once set, its subscribers are called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiozk import protocol

from dlog.io.metadata import Unsubscribe
from dlog.io.zookeeper_protocol import (
    XID_SET_WATCHES,
    AddWatchRequest,
    Connection,
    NoNodeError,
    SetWatches2Request,
    decode_nothing,
    decode_stat,
)

CHUNK_BYTES_MAX = 128 * 1024  # of one SetWatches; a server drops the connection at 1 MiB
REFUSED_AGAIN_S = 5.0  # until all refused watches are requested again

CREATED, DELETED, DATA_CHANGED, CHILDREN_CHANGED = 1, 2, 3, 4

WatchCallback = Callable[[], None]
TreeCallback = Callable[[str | None], None]

_ZXID_MAX = 2**63 - 1
_PERSISTENT_RECURSIVE = 1
_REMOVE_ANY = 3
_ASKED = "asked"  # the request to set the watch is pending
_DATA, _EXIST, _CHILD = "data", "exist", "child"  # set, as one of the three kinds of SetWatches


@dataclass(slots=True)
class _Watched:
    """Subscribers of one path, and the watches set at the server ("": none)."""

    data: dict[object, WatchCallback] = field(default_factory=dict)
    children: dict[object, WatchCallback] = field(default_factory=dict)
    node_set: str = ""  # _DATA if the znode existed, _EXIST if not
    children_set: str = ""
    has_refused: bool = False  # a watch was refused: changes are missed

    @property
    def is_whole(self) -> bool:
        """Whether every watch that the subscribers need is set or requested."""
        wants_node = bool(self.data) or (bool(self.children) and not self.children_set)
        return not (wants_node and not self.node_set) and not (self.children and not self.children_set)


@dataclass(slots=True)
class _Tree:
    subscriptions: list[_TreeSubscription] = field(default_factory=list)
    is_set: bool = False
    reported_zxid: int = 0  # up to which every change was reported when contact was last lost in this session


class _TreeSubscription:
    """A subscription to a tree; calling it withdraws it."""

    __slots__ = ("callback", "path", "tree", "watches")

    def __init__(self, watches: Watches, path: str, tree: _Tree, callback: TreeCallback) -> None:
        self.watches = watches
        self.path = path
        self.tree = tree
        self.callback = callback

    def __call__(self) -> None:
        self.watches.remove_tree(self)


class Watches:
    """All watches. Paths are the server's, with the chroot; callbacks of trees get them without."""

    def __init__(self, chroot: str) -> None:
        self._chroot = chroot
        self._connection: Connection | None = None
        self._paths: dict[str, _Watched] = {}
        self._trees: dict[str, _Tree] = {}
        self._reported_zxid = 0  # up to which every watch of this session has reported
        self._unanswered = 0  # pending SetWatches requests of `set_all` on this connection
        self._again: asyncio.TimerHandle | None = None

    # ---- subscribing -----------------------------------------------------------------------------------------------

    def add_data(self, path: str, callback: WatchCallback) -> Unsubscribe:
        watched, key = self._paths.setdefault(path, _Watched()), object()
        watched.data[key] = callback
        self._set(path, watched)
        return lambda: self._remove(path, watched.data, key)

    def add_children(self, path: str, callback: WatchCallback) -> Unsubscribe:
        watched, key = self._paths.setdefault(path, _Watched()), object()
        watched.children[key] = callback
        self._set(path, watched)
        return lambda: self._remove(path, watched.children, key)

    def add_tree(self, path: str, callback: TreeCallback) -> Unsubscribe:
        tree = self._trees.get(path)
        if tree is None:
            tree = self._trees[path] = _Tree()
        subscription = _TreeSubscription(self, path, tree, callback)
        tree.subscriptions.append(subscription)
        if len(tree.subscriptions) == 1:
            self._set_tree(path, tree)
        return subscription

    def remove_tree(self, subscription: _TreeSubscription) -> None:
        """Withdraw a subscription; idempotent."""
        path, tree = subscription.path, subscription.tree
        if subscription not in tree.subscriptions:
            return
        tree.subscriptions.remove(subscription)
        if not tree.subscriptions:
            self._trees.pop(path, None)
            if self._connection is not None:
                request = protocol.RemoveWatchesRequest(path=path, type=_REMOVE_ANY)
                self._connection.submit(request, decode_nothing, _whatever, path)

    def tree_is_set(self, path: str) -> bool:
        """Whether every change below `path` since the last call with None is reported."""
        tree = self._trees.get(path)
        return tree is not None and tree.is_set

    def tree_reported_zxid(self, path: str) -> int:
        """The zxid up to which changes below `path` were reported when contact was last lost; 0: unknown."""
        tree = self._trees.get(path)
        return tree.reported_zxid if tree is not None else 0

    # ---- events of the session -------------------------------------------------------------------------------------

    def event_received(self, kind: int, path: str) -> None:
        """Handle a watch event: set the used-up watch again, then notify."""
        watched = self._paths.get(path)
        if watched is not None:
            if kind != CHILDREN_CHANGED and watched.node_set != _ASKED:
                watched.node_set = ""
            if kind in (CHILDREN_CHANGED, DELETED) and watched.children_set != _ASKED:
                watched.children_set = ""
            self._set(path, watched)
            if kind != CHILDREN_CHANGED:
                _notify(watched.data)
            if kind != DATA_CHANGED:
                _notify(watched.children)
        if self._trees:
            self._notify_trees(path)

    def detached(self) -> None:
        """The connection has ended, and its tree watches with it."""
        connection, self._connection = self._connection, None
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if connection is not None and not self._unanswered:
            self._reported_zxid = max(self._reported_zxid, connection.last_zxid)
        for tree in self._trees.values():
            if tree.is_set and connection is not None:
                tree.reported_zxid = max(tree.reported_zxid, connection.last_zxid)
            tree.is_set = False

    def session_lost(self) -> None:
        """Notify all subscribers: any change may follow a lost session."""
        self._reported_zxid = 0
        for watched in self._paths.values():
            _notify(watched.data)
            _notify(watched.children)
        for tree in self._trees.values():
            tree.reported_zxid = 0
            _notify_unseen(tree)

    def set_all(self, connection: Connection, *, is_new_session: bool) -> None:
        """Set all watches on a new connection; the server fires for changes after the reported zxid. In a new session
        all subscribers are notified instead."""
        self._connection = connection
        chunks = self._chunks()
        self._unanswered = len(chunks)
        for chunk in chunks:
            request = protocol.SetWatchesRequest(
                relative_zxid=_ZXID_MAX if is_new_session else self._reported_zxid,
                data_watches=[path for kind, path in chunk if kind == _DATA],
                exist_watches=[path for kind, path in chunk if kind == _EXIST],
                child_watches=[path for kind, path in chunk if kind == _CHILD],
            )
            connection.submit(request, decode_nothing, self._chunk_set(connection), xid=XID_SET_WATCHES)
        for path, watched in self._paths.items():
            whole = watched.is_whole
            self._set(path, watched)
            if is_new_session or not whole:
                _notify(watched.data)
                _notify(watched.children)
        for trees in self._tree_chunks():
            self._set_trees(connection, trees)
        for tree in self._trees.values():
            _notify_unseen(tree)

    # ---- underneath ------------------------------------------------------------------------------------------------

    def _remove(self, path: str, callbacks: dict[object, WatchCallback], key: object) -> None:
        """Unsubscribe. The server's watch stays until it fires once."""
        callbacks.pop(key, None)
        watched = self._paths.get(path)
        if watched is not None and not watched.data and not watched.children:
            del self._paths[path]

    def _set(self, path: str, watched: _Watched) -> None:
        """Set the missing watches of this path at the server."""
        connection = self._connection
        if connection is None or connection.is_closed:
            return
        if watched.data and not watched.node_set:
            self._set_node(path, watched, connection)
        if watched.children and not watched.children_set:
            watched.children_set = _ASKED

            def done(_: Any, error: Exception | None) -> None:
                watched.children_set = "" if error else _CHILD
                if not isinstance(error, NoNodeError):
                    self._answered(watched, connection, error)
                elif not watched.node_set:
                    self._set_node(path, watched, connection)  # watch for its creation first

            connection.submit(protocol.GetChildrenRequest(path=path, watch=True), decode_nothing, done, path)

    def _set_node(self, path: str, watched: _Watched, connection: Connection) -> None:
        watched.node_set = _ASKED

        def done(_: Any, error: Exception | None) -> None:
            watched.node_set = _EXIST if isinstance(error, NoNodeError) else "" if error else _DATA
            self._answered(watched, connection, None if watched.node_set else error)
            if watched.node_set == _DATA and watched.children and not watched.children_set:
                self._set(path, watched)  # the znode was created in between
                _notify(watched.children)

        connection.submit(protocol.ExistsRequest(path=path, watch=True), decode_stat, done, path)

    def _set_tree(self, path: str, tree: _Tree) -> None:
        tree.is_set = False
        connection = self._connection
        if connection is None or connection.is_closed:
            return

        def done(_: Any, error: Exception | None) -> None:
            tree.is_set = error is None and not connection.is_closed
            if error is not None:
                self._refused(connection)

        connection.submit(AddWatchRequest(path=path, mode=_PERSISTENT_RECURSIVE), decode_nothing, done, path)

    def _set_trees(self, connection: Connection, trees: dict[str, _Tree]) -> None:
        """Set many tree watches in one request."""

        def done(_: Any, error: Exception | None) -> None:
            for tree in trees.values():
                tree.is_set = error is None and not connection.is_closed
            if error is not None:
                self._refused(connection)

        request = SetWatches2Request(
            relative_zxid=_ZXID_MAX,
            data_watches=[],
            exist_watches=[],
            child_watches=[],
            persistent_watches=[],
            persistent_recursive_watches=list(trees),
        )
        connection.submit(request, decode_nothing, done, xid=XID_SET_WATCHES)

    def _answered(self, watched: _Watched, connection: Connection, error: Exception | None) -> None:
        """A watch was set or refused. Notify subscribers once all are set after a refusal."""
        if error is not None:
            watched.has_refused = self._refused(connection)
        elif watched.has_refused and watched.is_whole:
            watched.has_refused = False
            _notify(watched.data)
            _notify(watched.children)

    def _refused(self, connection: Connection) -> bool:
        """A watch was not set: return whether the server refused it, and then request it again later. If the connection
        has ended, the next one sets it."""
        if connection.is_closed:
            return False
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(REFUSED_AGAIN_S, self._ask_again)
        return True

    def _ask_again(self) -> None:
        self._again = None
        for path, watched in self._paths.items():
            self._set(path, watched)
        for path, tree in self._trees.items():
            if not tree.is_set:
                self._set_tree(path, tree)
                _notify_unseen(tree)

    def _chunk_set(self, connection: Connection) -> Callable[[Any, Exception | None], None]:
        drop = drop_if_refused(connection)

        def done(value: Any, error: Exception | None) -> None:
            if error is None and connection is self._connection:
                self._unanswered -= 1
            drop(value, error)

        return done

    def _chunks(self) -> list[list[tuple[str, str]]]:
        """(kind, path) of all watches that were set, in chunks that a server accepts."""
        chunks: list[list[tuple[str, str]]] = []
        room = 0
        for path, watched in self._paths.items():
            for kind in (watched.node_set, watched.children_set):
                if kind in (_DATA, _EXIST, _CHILD):
                    size = len(path.encode()) + 4
                    if not chunks or size > room:
                        chunks.append([])
                        room = CHUNK_BYTES_MAX
                    chunks[-1].append((kind, path))
                    room -= size
        return chunks

    def _tree_chunks(self) -> list[dict[str, _Tree]]:
        """All trees by path, in chunks that a server accepts."""
        chunks: list[dict[str, _Tree]] = []
        room = 0
        for path, tree in self._trees.items():
            size = len(path.encode()) + 4
            if not chunks or size > room:
                chunks.append({})
                room = CHUNK_BYTES_MAX
            chunks[-1][path] = tree
            room -= size
        return chunks

    def _notify_trees(self, path: str) -> None:
        below = path.removeprefix(self._chroot) or "/"
        while True:
            tree = self._trees.get(path)
            if tree is not None:
                loop = asyncio.get_running_loop()
                for subscription in tree.subscriptions:
                    loop.call_soon(subscription.callback, below)
            if path in ("/", ""):
                return
            path = path.rpartition("/")[0] or "/"


def _notify(callbacks: dict[object, WatchCallback]) -> None:
    loop = asyncio.get_running_loop()
    for callback in callbacks.values():
        loop.call_soon(callback)


def _notify_unseen(tree: _Tree) -> None:
    loop = asyncio.get_running_loop()
    for subscription in tree.subscriptions:
        loop.call_soon(subscription.callback, None)


def _whatever(_: Any, __: Exception | None) -> None:
    return None


def drop_if_refused(connection: Connection) -> Callable[[Any, Exception | None], None]:
    """Callback for a request replayed on a new connection: drop the connection if it is refused."""

    def done(_: Any, error: Exception | None) -> None:
        if error is not None:
            connection.drop(f"refused while joining: {error}")

    return done
