"""Locations of cold objects, as text: a root, and below it a name that identifies the segment.

    file:///mnt/cold                 a directory that every process reaches under this path
    s3://bucket/prefix               S3 or compatible
    webhdfs://host:9870/path         a Hadoop file system by WebHDFS or HttpFS, swebhdfs by TLS; more hosts by commas
    <root>/<cluster>/<namespace>/<stream>/<number>-<nonce>-<bytes>.seg

The name holds the payload size, so that planning need not open the object. parse_root raises ConfigError for bad user
input; parse_object returns None for bad metadata.

Invariants:
- only objects with such a name are read or deleted, whatever metadata says; a name is never reused;
- paths consist of characters that need no escaping anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlog.errors import ConfigError

SCHEMES = ("file", "s3", "webhdfs", "swebhdfs")

_LOCATION = re.compile(
    r"(?P<scheme>[a-z0-9]+)://(?P<authority>[A-Za-z0-9.:,\[\]_-]*)(?P<path>(?:/[A-Za-z0-9._=@+~-]+)*)/?\Z"
)
_OBJECT = re.compile(r"(?P<number>[0-9]{18})-(?P<nonce>[0-9a-f]{16})-(?P<bytes>[0-9]{1,16})\.seg\Z")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}\Z")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")
_HDFS = (
    "say the NameNode's HTTP address, as webhdfs://host:9870/path, or an HttpFS gateway's, webhdfs://host:14000/path"
)


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed root or object location. path: without a trailing slash, empty for a whole bucket."""

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    def below(self, *parts: str) -> Location:
        return Location(self.scheme, self.authority, "/".join((self.path, *parts)))

    def holds(self, other: Location) -> bool:
        """Whether the other location is this one or below it."""
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        return other.path == self.path or other.path.startswith(f"{self.path}/")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        return Location(self.scheme, self.authority, self.path.rpartition("/")[0])


@dataclass(frozen=True, slots=True)
class ObjectName:
    """Parts of an object's file name."""

    number: int
    nonce: str
    bytes: int  # of all entries' payloads

    def __str__(self) -> str:
        return f"{self.number:018d}-{self.nonce}-{self.bytes}.seg"


def parse_root(text: str) -> Location:
    """Parse a root from user input. Raises ConfigError."""
    found = _parse(text)
    if found is None:
        scheme = text.partition("://")[0]
        hint = _HDFS if scheme == "hdfs" else "write s3:// for S3" if scheme in ("s3a", "s3n") else _HOW
        raise ConfigError(f"invalid object location: {hint}: value={text[:100]!r}")
    return found


_HOW = "write file:///directory, s3://bucket/prefix or webhdfs://host:port/path, of letters, digits and . _ = @ + ~ -"


def parse_object(text: str) -> tuple[Location, ObjectName] | None:
    """Parse an object's location and name; None if it is not one."""
    found = _parse(text)
    named = _OBJECT.match(found.name) if found is not None else None
    if found is None or named is None:
        return None
    return found, ObjectName(int(named["number"]), named["nonce"], int(named["bytes"]))


def folder_of(root: Location, cluster: str, namespace: str, stream: str = "") -> Location:
    """The folder of a namespace's objects, or of one of its streams. Raises ConfigError."""
    parts = [cluster, namespace.strip("/").replace("/", "."), *([stream] if stream else [])]
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9._=@+~-]+", part) or part in (".", ".."):
            raise ConfigError(f"invalid name in a location, use letters, digits and . _ = @ + ~ -: name={part[:80]!r}")
    return root.below(*parts)


def payload_bytes(location: str) -> int:
    """Payload bytes of an object according to its name; 0 if it has none."""
    found = parse_object(location)
    return found[1].bytes if found is not None else 0


def _parse(text: str) -> Location | None:
    match = _LOCATION.match(text)
    if match is None or match["scheme"] not in SCHEMES:
        return None
    root = Location(match["scheme"], match["authority"], match["path"])
    if any(part in (".", "..") for part in root.path.split("/")):
        return None
    match root.scheme:
        case "file":
            return root if not root.authority and root.path else None
        case "s3":
            return root if _BUCKET.match(root.authority) else None
    hosts = root.authority.split(",")
    return root if root.path and all(map(_HOST.match, hosts)) else None
