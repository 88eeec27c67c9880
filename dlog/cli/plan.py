"""The plan of a local cluster (host, ports, number of processes), kept in `cluster.json` of its directory.

Invariants:
- the port of a bookie is chosen at its first start and never changes: ledger metadata names bookies by address;
- the number of bookies never decreases: entries on a missing bookie would be unavailable;
- before the bookies start, what they need is written; all else once every part serves;
- the directory may be moved as a whole: addresses of topics and objects inside it are written relative to it.
"""

from __future__ import annotations

import json
import posixpath
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dlog.cli.discovery import NAMESPACE
from dlog.cli.output import CommandError
from dlog.hostport import bare_host, join_host_port
from dlog.io.embedded_zookeeper import HEAP_USABLE_MIN_MIB
from dlog.io.file_errors import describe_error, named_errors, owner_of
from dlog.io.kafka_settings import parse_topics_address
from dlog.io.listening import check_free, is_free
from dlog.io.zookeeper_hosts import is_same_ensemble
from dlog.io.zookeeper_layout import StreamPaths
from dlog.options import option
from dlog.stores.object_storage.locations import encode_path, parse_root

PLAN_FILE = "cluster.json"
_FILES = "file://"
_INSIDE = "./"  # begins the address of topics or objects inside the directory, in its plan file
HOST = "127.0.0.1"
_PORTS = range(20000, 32000)  # below the kernel's ephemeral ports


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Section [up] of a configuration file; the flags of `dlog up` override it."""

    bookies: int = option(
        -1,
        "bookies; 0: none, streams lie in Kafka, as objects or in files; -1: as many as there were, 3 at the first "
        "start",
    )
    kafka: str = option(
        "",
        "Kafka's brokers for streams, host:port,host:port, or file:///path for topics in a directory; empty: as before",
    )
    objects: str = option(
        "",
        "root of the objects of streams, s3://bucket/prefix or file:///path; empty: as before, else the root of "
        "[objects], else `objects` in the directory",
    )
    racks: int = option(
        0,
        "racks (rack-1, rack-2, ...) that bookies and proxies are spread over, in each region; 0: as before, one at "
        "first",
    )
    regions: int = option(
        0, "regions (region-1, region-2, ...) that bookies and proxies are spread over; 0: as before, one at first"
    )
    write_proxies: int = option(
        0, "write proxies; 0: as many as there were, 2 at the first start or one in each region"
    )
    read_proxies: int = option(0, "read proxies; 0: as many as there were, 2 at the first start or one in each region")
    port: int = option(0, "port of the first write proxy, the others follow it; 0: free ones")
    host: str = option("", "address to listen on; empty: as it was, 127.0.0.1 at the first start")
    zookeeper: str = option(
        "", "addresses of a ZooKeeper that runs already; empty: as it was, at the first start one is started"
    )
    namespace: str = option("", "path in ZooKeeper; empty: as it was, /dlog at the first start")
    zookeeper_heap_mib: int = option(
        0, "heap of the started ZooKeeper in MiB; 0: an eighth of the memory, from 128 to 1024"
    )

    def __post_init__(self) -> None:
        for name, least in (("bookies", -1), ("racks", 0), ("regions", 0), ("write_proxies", 0), ("read_proxies", 0)):
            if not least <= getattr(self, name) <= 64:
                raise ValueError(f"{name} must be between {least + 1} and 64: value={getattr(self, name)}")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port must be between 0 and 65535: port={self.port}")
        if self.zookeeper_heap_mib and self.zookeeper_heap_mib < HEAP_USABLE_MIN_MIB:
            raise ValueError(
                f"zookeeper_heap_mib must be 0 (chosen by the machine's memory) or at least {HEAP_USABLE_MIN_MIB}: "
                f"value={self.zookeeper_heap_mib}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Host and ports of a cluster. zookeeper: hosts of an external ZooKeeper, or empty. kafka: address of the topics
    with streams, or empty. objects: root of the objects of streams, if it was given; else empty. racks: in each region;
    0: bookies and proxies publish no rack. regions: 0: they publish no region."""

    host: str
    namespace: str
    zookeeper: str = ""
    zookeeper_port: int = 0
    bookies: list[int] = field(default_factory=list)
    write: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    kafka: str = ""
    objects: str = ""
    racks: int = 0
    regions: int = 0
    version: int = 1

    @property
    def region_names(self) -> list[str]:
        """The regions of bookies and proxies; empty: they publish none."""
        return [f"region-{number}" for number in range(1, self.regions + 1)]

    @property
    def zookeeper_hosts(self) -> str:
        return self.zookeeper or join_host_port(self.host, self.zookeeper_port)

    def location_of(self, number: int) -> tuple[str, str]:
        """Rack and region of the bookie, write or read proxy of this number (from 1): in turns, regions first. Empty:
        it publishes none."""
        turn, region = divmod(number - 1, max(1, self.regions))
        rack = f"rack-{turn % self.racks + 1}" if self.racks else ""
        return rack, self.region_names[region] if self.regions else ""

    def addresses(self) -> list[tuple[str, int]]:
        """(role, port) of every process, each of which needs a free port."""
        zookeeper = [] if self.zookeeper else [("zookeeper", self.zookeeper_port)]
        ports = (("bookie", self.bookies), ("write", self.write), ("read", self.read))
        return [*zookeeper, *((role, port) for role, of_role in ports for port in of_role)]


def make_plan(directory: Path, options: UpOptions, rng: random.Random) -> Plan:
    """The plan of this directory with the changes in `options`, or a new plan. Writes nothing.

    Raises CommandError for a change that is not possible, a host that cannot be listened on, or a plan file that cannot
    be read; ConfigError for an invalid namespace, or an address of topics or objects that is none.
    """
    old = read_plan(directory)
    options = replace(options, namespace=options.namespace.rstrip("/") or options.namespace)
    plan = old or Plan(
        host=bare_host(options.host) or HOST, namespace=options.namespace or NAMESPACE, zookeeper=options.zookeeper
    )
    if old is not None:
        _check_change(old, options)
    proxies = max(2, options.regions)
    counts = {
        "write": options.write_proxies or len(plan.write) or proxies,
        "read": options.read_proxies or len(plan.read) or proxies,
        "bookies": options.bookies if options.bookies >= 0 else len(plan.bookies) if old is not None else 3,
    }
    _check_host(plan.host)
    StreamPaths(plan.namespace)  # raises ConfigError
    taken = {port for _, port in plan.addresses()}
    wanted = _Ports(plan.host, options.port, taken, rng)
    if options.port and options.port != (plan.write or [0])[0]:
        plan = replace(plan, write=[], read=[])
    plan = replace(plan, write=wanted.grow(plan.write, counts["write"]))
    plan = replace(plan, read=wanted.grow(plan.read, counts["read"]))
    plan = replace(plan, bookies=wanted.grow(plan.bookies, counts["bookies"]))
    plan = replace(plan, racks=options.racks or plan.racks, regions=options.regions or plan.regions)
    if options.kafka:
        plan = replace(plan, kafka=parse_topics_address(options.kafka))
    if options.objects:
        plan = replace(plan, objects=str(parse_root(options.objects)))
    if not plan.zookeeper and not plan.zookeeper_port:
        plan = replace(plan, zookeeper_port=wanted.grow([], 1)[0])
    return plan


def read_plan(directory: Path) -> Plan | None:
    """The plan in this directory, or None. Raises CommandError if it cannot be read."""
    path = directory / PLAN_FILE
    try:
        plan = Plan(**json.loads(path.read_text()))
        _check_types(plan)
        return replace(
            plan,
            kafka=_absolute(plan.kafka, _topics_base, directory),
            objects=_absolute(plan.objects, objects_base, directory),
        )
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise CommandError(
            f"cannot read the plan of this cluster: {describe_error(error)}",
            f"run `dlog up` as {owner_of(path)}, who owns the file, or get the right to read it",
        ) from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CommandError(
            f"cannot read the plan of this cluster: {error}: file={path}",
            "restore the file: it has the bookies' ports, by which ledgers name them",
        ) from None


def _check_types(plan: Plan) -> None:
    """Raise ValueError if a value has the wrong type."""
    texts = (plan.host, plan.namespace, plan.zookeeper, plan.kafka, plan.objects)
    if not all(type(text) is str for text in texts):
        raise ValueError("host, namespace, zookeeper, kafka and objects must be strings")
    for ports in (plan.bookies, plan.write, plan.read, [plan.zookeeper_port]):
        if type(ports) is not list or not all(type(port) is int and 0 <= port < 65536 for port in ports):
            raise ValueError("ports must be numbers below 65536")
    if not all(type(count) is int and 0 <= count <= 64 for count in (plan.racks, plan.regions)):
        raise ValueError("racks and regions must be numbers up to 64")


def plan_for_bookies(old: Plan | None, plan: Plan) -> Plan:
    """What must be kept before the bookies of `plan` start: their host and ports, and the metadata that has them.
    Everything else is as in `old`, so that a wrong option of a start that fails is not there at the next one."""
    before = old or Plan(host=plan.host, namespace=plan.namespace, zookeeper=plan.zookeeper)
    return replace(before, bookies=plan.bookies, zookeeper_port=plan.zookeeper_port)


def write_plan(directory: Path, plan: Plan) -> None:
    """Write the plan into its directory, atomically; nothing if it is there already, as a full disk has no space."""
    path = directory / PLAN_FILE
    fields = asdict(plan)
    fields["kafka"] = _relative(plan.kafka, _topics_base, directory)
    fields["objects"] = _relative(plan.objects, objects_base, directory)
    for name in ("kafka", "objects", "racks", "regions"):
        if not fields[name]:
            del fields[name]  # unknown to versions without it
    fresh, text = path.with_suffix(".new"), json.dumps(fields, indent=1) + "\n"
    with suppress(OSError, UnicodeDecodeError):
        if path.read_text() == text:
            return
    with named_errors(fresh):
        fresh.write_text(text)
    fresh.replace(path)


def objects_base(directory: Path) -> str:
    """An absolute directory as the root of objects."""
    path = directory.resolve() if ".." in directory.parts else directory
    return f"{_FILES}/{encode_path(str(path).lstrip('/'))}"


def _topics_base(directory: Path) -> str:
    """An absolute directory as the address of topics."""
    return f"{_FILES}/{posixpath.normpath(directory).lstrip('/')}"


def _relative(address: str, base: Callable[[Path], str], directory: Path) -> str:
    """An address of topics or objects as it is written: relative to the cluster's directory if it is inside. base: an
    absolute directory as such an address."""
    if address.startswith(f"{_FILES}/"):
        for path in (directory.absolute(), directory.resolve()):
            if address == base(path) or address.startswith(f"{base(path)}/"):
                return _INSIDE + address.removeprefix(base(path)).lstrip("/")
    return address


def _absolute(address: str, base: Callable[[Path], str], directory: Path) -> str:
    """The inverse of `_relative`."""
    if not address.startswith(_INSIDE):
        return address
    return f"{base(directory.absolute())}/{address.removeprefix(_INSIDE)}".rstrip("/")


def check_ports(plan: Plan) -> None:
    """Raise CommandError if a port of the plan is in use."""
    for role, port in plan.addresses():
        try:
            check_free(plan.host, port)
        except OSError as error:
            keeps = (
                "stop the program that uses it; the ports of bookies and ZooKeeper cannot change"
                if role in ("bookie", "zookeeper")
                else "stop the program that uses it, or choose other ports with --port"
            )
            raise CommandError(
                f"cannot listen on the port of a {role}: {(error.strerror or str(error)).lower()}: "
                f"{join_host_port(plan.host, port)}",
                keeps,
            ) from None


def _check_host(host: str) -> None:
    """Raise CommandError if this machine cannot listen on the host at all."""
    try:
        check_free(host, 0)
    except OSError as error:
        raise CommandError(
            f"cannot listen on this host: {(error.strerror or str(error)).lower()}: host={host}",
            "give a name or an address of this machine with --host",
        ) from None


def _check_change(old: Plan, options: UpOptions) -> None:
    if 0 <= options.bookies < len(old.bookies):
        raise CommandError(
            f"this directory has {len(old.bookies)} bookies; with fewer, entries on the others would be unavailable: "
            f"bookies={options.bookies}",
            f"use --bookies {len(old.bookies)} or more, or omit it",
        )
    if options.zookeeper and not is_same_ensemble(options.zookeeper, old.zookeeper_hosts):
        raise CommandError(
            f"this directory has another ZooKeeper: here={old.zookeeper_hosts} asked={options.zookeeper}",
            "omit --zookeeper, or use another --dir",
        )
    if options.host and bare_host(options.host) != old.host:
        raise CommandError(
            f"the cluster in this directory listens on another host, which is part of its bookies' ids in ledger "
            f"metadata: here={old.host} asked={options.host}",
            "omit --host, or use another --dir",
        )
    if options.namespace and options.namespace != old.namespace:
        raise CommandError(
            f"the cluster in this directory has its streams under another znode: "
            f"here={old.namespace} asked={options.namespace}",
            "omit --namespace, or use another --dir",
        )


class _Ports:
    """Chooses ports that are free now."""

    def __init__(self, host: str, first: int, taken: set[int], rng: random.Random) -> None:
        self._host = host
        self._next = first
        self._taken = taken
        self._rng = rng

    def grow(self, ports: list[int], count: int) -> list[int]:
        """The first `count` of `ports`, and new ones if there are fewer."""
        return [*ports[:count], *(self._one() for _ in range(count - len(ports)))]

    def _one(self) -> int:
        if self._next:
            while self._next in self._taken:
                self._next += 1
            port = self._next
            if port > 65535:
                raise CommandError(
                    "each part uses one port from --port on, and the last would be above 65535", "use a lower --port"
                )
        else:
            port = next((p for p in self._candidates() if p not in self._taken and is_free(self._host, p)), 0)
            if not port:
                raise CommandError(
                    f"no free port found: host={self._host}", "choose ports with --port, or check --host"
                )
        self._taken.add(port)
        return port

    def _candidates(self) -> list[int]:
        return self._rng.sample(_PORTS, 200)
