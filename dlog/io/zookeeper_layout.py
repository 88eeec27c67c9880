"""Paths in ZooKeeper: BookKeeper's trees for ledgers and their repair, DistributedLog's for streams. Names only, no
calls.

We add `<namespace>/.proxies/<role>/<id>`, `<namespace>/.bookies/<id>`, `<namespace>/.deletions`,
`<ledgers>/underreplication/pausedBookies/<id>`, and `owner`, `settings`, `sinks` and `life-<nonce>` beside a stream's
own znodes. Java tools skip them.
Source: BookKeeper `HierarchicalLedgerManager`, `ZKRegistrationManager`, `ZkLedgerUnderreplicationManager`;
DistributedLog `LogMetadata`, `ZKSessionLock`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from dlog.errors import ConfigError
from dlog.model.ids import BookieId, LedgerId, ProxyId, StreamName

SHORT_ID_MAX = 2**31 - 2  # larger ledger ids are in the deep tree

LAYOUT_FACTORY = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
LAYOUT_VERSION = 1
LAYOUT = f"2\n{LAYOUT_FACTORY}:{LAYOUT_VERSION}".encode()

PROXY_ROLES = ("write", "read")

_UR_NAME = re.compile(r"urL([0-9]{10,19})\Z", re.ASCII)
_UR_GROUP = re.compile(r"[0-9a-f]{4}\Z")
_NUMBER = re.compile(r"\s*[0-9]{1,9}\s*\Z", re.ASCII)
_NAMESPACE = re.compile(r"(?:/[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+\Z")  # what ZooKeeper takes in a path


def parse_layout(data: bytes) -> tuple[str, int]:
    """Parse LAYOUT's data into factory class and version ("" and 0 if unreadable)."""
    lines = data.decode(errors="replace").split("\n")
    factory, _, version = (lines[1] if len(lines) > 1 else "").partition(":")
    known = lines[0] == "2" and _NUMBER.match(version) is not None
    return (factory, int(version)) if known else ("", 0)


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """BookKeeper's tree below `root`."""

    root: str = "/ledgers"

    @property
    def layout(self) -> str:
        return f"{self.root}/LAYOUT"

    @property
    def instance_id(self) -> str:
        return f"{self.root}/INSTANCEID"

    @property
    def available(self) -> str:
        return f"{self.root}/available"

    @property
    def readonly(self) -> str:
        return f"{self.root}/available/readonly"

    @property
    def cookies(self) -> str:
        return f"{self.root}/cookies"

    @property
    def short_ids(self) -> str:
        return f"{self.root}/idgen"

    @property
    def long_ids(self) -> str:
        return f"{self.root}/idgen-long"

    @property
    def underreplication(self) -> UnderreplicationPaths:
        return UnderreplicationPaths(f"{self.root}/underreplication")

    def cookie(self, bookie: BookieId) -> str:
        return f"{self.cookies}/{bookie}"

    def ledger(self, ledger: LedgerId) -> str:
        """Path of a ledger's metadata: 10 digits split 2-4-4, or from 2**31 - 1 on 19 digits split 3-4-4-4-4."""
        if ledger <= SHORT_ID_MAX:
            digits = f"{ledger:010d}"
            return f"{self.root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
        digits = f"{ledger:019d}"
        return f"{self.root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"

    def ledger_of(self, path: str) -> LedgerId | None:
        """The ledger that has this path; None if none has."""
        parts = path.removeprefix(self.root).strip("/").split("/")
        digits = "".join(parts[:-1]) + parts[-1].removeprefix("L")
        if not parts[-1].startswith("L") or not digits.isascii() or not digits.isdigit():
            return None
        ledger = LedgerId(int(digits))
        return ledger if self.ledger(ledger) == path else None

    @staticmethod
    def is_ledger_directory(name: str) -> bool:
        """Whether a child of the root begins a ledger path (not LAYOUT, idgen, cookies, ...)."""
        return name.isascii() and name.isdigit() and len(name) in (2, 3)


@dataclass(frozen=True, slots=True)
class UnderreplicationPaths:
    """BookKeeper's tree of ledgers that lack copies, below the root of the ledgers."""

    root: str = "/ledgers/underreplication"

    @property
    def layout(self) -> str:
        return f"{self.root}/LAYOUT"

    @property
    def marks(self) -> str:
        return f"{self.root}/ledgers"

    @property
    def locks(self) -> str:
        return f"{self.root}/locks"

    @property
    def election(self) -> str:
        """The znode with the auditor's vote; the votes are its children."""
        return f"{self.root}/auditorelection"

    @property
    def votes(self) -> str:
        """Prefix of the votes; ZooKeeper appends the sequence number, and the lowest wins."""
        return f"{self.election}/V_"

    @property
    def disable(self) -> str:
        """While this znode exists nothing is marked and nothing repaired."""
        return f"{self.root}/disable"

    @property
    def lost_bookie_delay(self) -> str:
        return f"{self.root}/lostBookieRecoveryDelay"

    @property
    def pauses(self) -> str:
        """Parent of the planned restarts of bookies. Our own: Java reads only the znodes above, each by its name."""
        return f"{self.root}/pausedBookies"

    def pause(self, bookie: BookieId) -> str:
        return f"{self.pauses}/{bookie}"

    def mark(self, ledger: LedgerId) -> str:
        """Path of a ledger's mark: the id as four groups of four hexadecimal digits, then `urL` and ten digits."""
        digits = f"{ledger:016x}"
        return f"{self.marks}/{digits[:4]}/{digits[4:8]}/{digits[8:12]}/{digits[12:]}/{_ur_name(ledger)}"

    def lock(self, ledger: LedgerId) -> str:
        return f"{self.locks}/{_ur_name(ledger)}"

    @staticmethod
    def ledger_of_lock(name: str) -> LedgerId | None:
        """The ledger that a child of `locks` locks; None if it is no lock."""
        match = _UR_NAME.match(name)
        return LedgerId(int(match[1])) if match is not None and int(match[1]) < 2**63 else None

    @staticmethod
    def is_group(name: str) -> bool:
        """Whether a znode below `marks` is one of the four groups of digits."""
        return _UR_GROUP.match(name) is not None


def _ur_name(ledger: LedgerId) -> str:
    return f"urL{ledger:010d}"


@dataclass(frozen=True, slots=True)
class StreamPaths:
    """DistributedLog's tree below `namespace`."""

    namespace: str

    def __post_init__(self) -> None:
        parts = self.namespace.split("/")
        if not _NAMESPACE.match(self.namespace) or any(part in (".", "..") for part in parts):
            raise ConfigError(f"a namespace is a znode path such as /dlog: namespace={self.namespace[:80]!r}")

    def stream(self, stream: StreamName) -> str:
        return f"{self.namespace}/{stream}"

    def root(self, stream: StreamName) -> str:
        """R, the root of all znodes of a stream."""
        return f"{self.namespace}/{stream}/<default>"

    @property
    def deletions(self) -> str:
        """The znode with a version that counts the streams deleted in this namespace."""
        return f"{self.namespace}/.deletions"

    @property
    def proxies(self) -> str:
        return f"{self.namespace}/.proxies"

    def store_identity(self, store: str) -> str:
        """The znode with the identity of the directory in which this store keeps the namespace's segments."""
        return f"{self.namespace}/.stores/{store}"

    def mark(self, bookie: BookieId) -> str:
        """The znode that a bookie writes at each garbage collection, to recognise this metadata later."""
        return f"{self.namespace}/.bookies/{bookie}"

    def proxy_role(self, role: str) -> str:
        return f"{self.proxies}/{role}"

    def proxy(self, role: str, proxy: ProxyId) -> str:
        return f"{self.proxies}/{role}/{proxy}"

    @staticmethod
    def is_stream(name: str) -> bool:
        """Whether a child of the namespace may be a stream."""
        return not name.startswith((".", "<"))


def parents_of(path: str) -> list[str]:
    """`/a/b/c` -> [`/a`, `/a/b`]."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: i + 1]) for i in range(len(parts) - 1)]


def lock_member(client: str, session_id: int) -> str:
    """Name of a lock member's znode; ZooKeeper appends the sequence number."""
    encoded = quote(client, safe="*").replace("%20", "+").replace("~", "%7E")  # as java.net.URLEncoder writes it
    return f"member_{encoded}_s{session_id:10d}_"
