"""The znodes of a ZooKeeper: what a request would change, whether it is allowed, and the change itself.

A znode counts its creations of children; clients are shown 2 x creations - children, as the real server does, and
sequential names carry the count itself. Source: `PrepRequestProcessor`, `DataTree`, `DataNode` of ZooKeeper 3.9.

Invariants:
- The module does no I/O.
- A change is planned against the present tree and refused with the code that the real server gives, with the checks in
  its order.
- A planned change is applied and can be undone, so that a multi is all or nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.service import zookeeper_wire as wire
from tests.simulation.service.zookeeper_wire import Ace, Acl, Op, SetAcl, Stat

ANY_VERSION = -1
_SPECIAL = ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config")
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")

Identity = tuple[str, str]  # scheme, id
Undo = Callable[[], None]


class RefusedError(Exception):
    """A request that changes nothing. code: sent in the reply."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused: code={code}")
        self.code = code


@dataclass(slots=True)
class Znode:
    data: bytes | None
    acl: Acl
    czxid: int = 0
    mzxid: int = 0
    pzxid: int = 0
    ctime_ms: int = 0
    mtime_ms: int = 0
    owner: int = 0
    version: int = 0
    creations: int = 0
    aversion: int = 0
    children: dict[str, None] = field(default_factory=dict)

    def stat(self) -> Stat:
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.mtime_ms,
            self.version,
            2 * self.creations - len(self.children),
            self.aversion,
            self.owner,
            len(self.data or b""),
            len(self.children),
            self.pzxid,
        )


# ---- changes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeCreated:
    path: str
    data: bytes | None
    acl: Acl
    owner: int


@dataclass(frozen=True, slots=True)
class NodeDeleted:
    path: str
    acl: Acl  # access control list before the change


@dataclass(frozen=True, slots=True)
class DataSet:
    path: str
    data: bytes | None
    version: int
    acl: Acl  # access control list after the change


@dataclass(frozen=True, slots=True)
class AclSet:
    path: str
    acl: Acl
    version: int


Change = NodeCreated | NodeDeleted | DataSet | AclSet


@dataclass(frozen=True, slots=True)
class Txn:
    """One entry of the ensemble's log. A request that was refused takes a zxid too. ended: the session it closed."""

    zxid: int
    time_ms: int
    changes: tuple[Change, ...] = ()
    ended: int = 0


class Tree:
    """All znodes, by path."""

    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {}
        root = self.nodes["/"] = self.nodes[""] = Znode(b"", wire.OPEN_ACL)
        zookeeper = self.nodes["/zookeeper"] = Znode(b"", wire.OPEN_ACL)
        root.children["zookeeper"] = None
        for name in ("quota", "config"):
            self.nodes[f"/zookeeper/{name}"] = Znode(b"", wire.OPEN_ACL)
            zookeeper.children[name] = None
        self.ephemerals: dict[int, dict[str, None]] = {}

    def copy(self) -> Tree:
        """An equal tree that changes independently."""
        other = Tree.__new__(Tree)
        other.nodes = {path: _copy(node) for path, node in self.nodes.items()}
        other.nodes[""] = other.nodes["/"]
        other.ephemerals = {owner: dict(paths) for owner, paths in self.ephemerals.items()}
        return other

    def node(self, path: str) -> Znode:
        """The znode at a path. Raises RefusedError."""
        node = self.nodes.get(path)
        if node is None:
            raise RefusedError(wire.NO_NODE)
        return node

    def names(self, path: str) -> list[str]:
        """The children's names, in no particular order. Raises RefusedError."""
        return sorted(self.node(path).children, key=lambda name: (zlib.crc32(name.encode()), name))

    # ---- planning ----------------------------------------------------------------------------------------------------

    def plan(self, request: Op | SetAcl, session_id: int, identities: tuple[Identity, ...]) -> Change | None:
        """The change that the request makes, None for a version check that holds. Raises RefusedError."""
        match request:
            case wire.CreateNode():
                return self._plan_create(request, session_id, identities)
            case wire.DeleteNode(path, version):
                if "/" not in path or "\0" in path or path in _SPECIAL:
                    raise RefusedError(wire.BAD_ARGUMENTS)
                check_acl(self.node(parent_of(path)).acl, wire.DELETE, identities)
                node = self.node(path)
                _check_version(node.version, version)
                if node.children:
                    raise RefusedError(wire.NOT_EMPTY)
                return NodeDeleted(path, node.acl)
            case wire.SetData(path, data, version):
                _check_path(path)
                node = self.node(path)
                check_acl(node.acl, wire.WRITE, identities)
                return DataSet(path, data, _check_version(node.version, version), node.acl)
            case SetAcl(path, acl, version):
                _check_path(path)
                acl = _settle_acl(acl, identities)
                node = self.node(path)
                check_acl(node.acl, wire.ADMIN, identities)
                return AclSet(path, acl, _check_version(node.aversion, version))
            case wire.CheckVersion(path, version):
                _check_path(path)
                node = self.node(path)
                check_acl(node.acl, wire.READ, identities)
                _check_version(node.version, version)
                return None

    def _plan_create(self, request: wire.CreateNode, session_id: int, identities: tuple[Identity, ...]) -> NodeCreated:
        if not wire.is_served(request.flags):
            raise RefusedError(wire.UNIMPLEMENTED if wire.is_creation(request.flags) else wire.BAD_ARGUMENTS)
        path = request.path
        if "/" not in path or "\0" in path:
            raise RefusedError(wire.BAD_ARGUMENTS)
        acl = _settle_acl(request.acl, identities)
        parent = self.node(parent_of(path))
        check_acl(parent.acl, wire.CREATE, identities)
        if request.flags & wire.SEQUENTIAL:
            path += f"{parent.creations:010d}"
        _check_path(path)
        if path in self.nodes:
            raise RefusedError(wire.NODE_EXISTS)
        if parent.owner:
            raise RefusedError(wire.NO_CHILDREN_FOR_EPHEMERALS)
        return NodeCreated(path, request.data, acl, session_id if request.flags & wire.EPHEMERAL else 0)

    # ---- applying ----------------------------------------------------------------------------------------------------

    def apply(self, change: Change, zxid: int, time_ms: int) -> Undo:
        """Apply a change that was planned on an equal tree."""
        match change:
            case NodeCreated(path, data, acl, owner):
                return self._create(path, Znode(data, acl, zxid, zxid, zxid, time_ms, time_ms, owner))
            case NodeDeleted(path):
                return self._delete(path, zxid)
            case DataSet(path, data, version):
                node = self.nodes[path]
                before = (node.data, node.version, node.mzxid, node.mtime_ms)
                node.data, node.version, node.mzxid, node.mtime_ms = data, version, zxid, time_ms

                def undo() -> None:
                    node.data, node.version, node.mzxid, node.mtime_ms = before

                return undo
            case AclSet(path, acl, version):
                node = self.nodes[path]
                acl_before = (node.acl, node.aversion)
                node.acl, node.aversion = acl, version

                def undo_acl() -> None:
                    node.acl, node.aversion = acl_before

                return undo_acl

    def _create(self, path: str, node: Znode) -> Undo:
        parent, name = self.nodes[parent_of(path)], path.rpartition("/")[2]
        before = (parent.creations, parent.pzxid)
        self.nodes[path] = node
        parent.children[name] = None
        parent.creations, parent.pzxid = parent.creations + 1, node.czxid
        if node.owner:
            self.ephemerals.setdefault(node.owner, {})[path] = None

        def undo() -> None:
            del self.nodes[path], parent.children[name]
            parent.creations, parent.pzxid = before
            self._disown(path, node.owner)

        return undo

    def _delete(self, path: str, zxid: int) -> Undo:
        parent, name = self.nodes[parent_of(path)], path.rpartition("/")[2]
        before = parent.pzxid
        node = self.nodes.pop(path)
        del parent.children[name]
        parent.pzxid = zxid
        self._disown(path, node.owner)

        def undo() -> None:
            self.nodes[path] = node
            parent.children[name] = None
            parent.pzxid = before
            if node.owner:
                self.ephemerals.setdefault(node.owner, {})[path] = None

        return undo

    def _disown(self, path: str, owner: int) -> None:
        if owner:
            owned = self.ephemerals[owner]
            del owned[path]
            if not owned:
                del self.ephemerals[owner]


def parent_of(path: str) -> str:
    """The parent's path; "" for a child of the root, which is the root's other name."""
    return path.rpartition("/")[0]


def _copy(node: Znode) -> Znode:
    return dataclasses.replace(node, children=dict(node.children))


def _check_version(version: int, expected: int) -> int:
    """Check the version and return the one that follows."""
    if expected not in (ANY_VERSION, version):
        raise RefusedError(wire.BAD_VERSION)
    return version + 1


def _check_path(path: str) -> None:
    if path == "/":
        return
    parts = path.split("/")
    if parts[0] or len(parts) < 2 or any(part in ("", ".", "..") for part in parts[1:]) or _FORBIDDEN.search(path):
        raise RefusedError(wire.BAD_ARGUMENTS)


# ---- access ----------------------------------------------------------------------------------------------------------


def identity_of(scheme: str, credential: bytes) -> Identity | None:
    """The identity that a credential proves; None: the scheme or the credential is not known here."""
    if scheme != "digest" or b":" not in credential:
        return None
    secret = base64.b64encode(hashlib.sha1(credential).digest()).decode()
    return scheme, f"{credential.partition(b':')[0].decode(errors='replace')}:{secret}"


def check_acl(acl: Acl, wanted: int, identities: tuple[Identity, ...]) -> None:
    """Raises RefusedError unless the list grants one of the permissions."""
    for ace in acl:
        if ace.perms & wanted and ((ace.scheme, ace.id) in identities or ace[1:] == ("world", "anyone")):
            return
    raise RefusedError(wire.NO_AUTH)


def _settle_acl(acl: Acl, identities: tuple[Identity, ...]) -> Acl:
    """The list to store: `auth` is replaced by every identity that the client has authenticated."""
    settled: dict[Ace, None] = {}
    for ace in dict.fromkeys(acl):
        if ace.scheme == "auth":
            mine = [identity for identity in identities if identity[0] == "digest"]
            if not mine:
                raise RefusedError(wire.INVALID_ACL)
            settled.update(dict.fromkeys(Ace(ace.perms, *identity) for identity in mine))
        elif ace[1:] == ("world", "anyone") or (ace.scheme == "digest" and ace.id.count(":") == 1):
            settled[ace] = None
        else:
            raise RefusedError(wire.INVALID_ACL)
    if not settled:
        raise RefusedError(wire.INVALID_ACL)
    return tuple(settled)


def shown_acl(acl: Acl, identities: tuple[Identity, ...]) -> Acl:
    """The list as its reader may see it: hashes of passwords are shown to administrators only."""
    try:
        check_acl(acl, wire.ADMIN, identities)
    except RefusedError:
        return tuple(
            Ace(ace.perms, ace.scheme, ace.id.partition(":")[0] + ":x") if ace.scheme == "digest" else ace
            for ace in acl
        )
    return acl
