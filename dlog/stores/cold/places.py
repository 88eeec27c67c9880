"""Where cold objects lie, as text: a root, and below it a name that says whose segment it is.

    file:///mnt/cold                 a directory that every process reaches under this path
    s3://bucket/prefix               S3, or what speaks as it does
    webhdfs://host:9870/path         a Hadoop file system by WebHDFS or HttpFS, swebhdfs by TLS; more hosts by commas
    <root>/<cluster>/<namespace>/<stream>/<number>-<nonce>-<bytes>.seg

The law of this file: only what bears such a name is read or deleted, whatever metadata says; a name is never used
twice. Paths are plain characters, so that nothing is escaped anywhere. The name holds how many bytes the entries have,
so that a plan need not open the object. What a person wrote wrong is a ConfigError; of what metadata says, None says
that it is no place of ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlog.errors import ConfigError

SCHEMES = ("file", "s3", "webhdfs", "swebhdfs")

_PLACE = re.compile(
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
    """A root or a place, taken apart. path: without a slash at its end, empty for all of a bucket."""

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    def below(self, *parts: str) -> Location:
        return Location(self.scheme, self.authority, "/".join((self.path, *parts)))

    def holds(self, other: Location) -> bool:
        """Whether the other lies below this one, or is it."""
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
    """What the last part of an object's place says."""

    number: int
    nonce: str
    bytes: int  # of all entries' payloads

    def __str__(self) -> str:
        return f"{self.number:018d}-{self.nonce}-{self.bytes}.seg"


def parse_root(text: str) -> Location:
    """A root as a person writes it. Raises ConfigError."""
    found = _parse(text)
    if found is None:
        scheme = text.partition("://")[0]
        hint = _HDFS if scheme == "hdfs" else "s3:// is how S3 is written here" if scheme in ("s3a", "s3n") else _HOW
        raise ConfigError(f"no place for cold objects: {hint}: value={text[:100]!r}")
    return found


_HOW = "write file:///directory, s3://bucket/prefix or webhdfs://host:port/path, of letters, digits and . _ = @ + ~ -"


def parse_object(text: str) -> tuple[Location, ObjectName] | None:
    """The place of an object and what its name says; None for what is no such place."""
    found = _parse(text)
    named = _OBJECT.match(found.name) if found is not None else None
    if found is None or named is None:
        return None
    return found, ObjectName(int(named["number"]), named["nonce"], int(named["bytes"]))


def folder_of(root: Location, cluster: str, namespace: str, stream: str = "") -> Location:
    """Below which the objects of a namespace lie, or of one stream of it. Raises ConfigError."""
    parts = [cluster, namespace.strip("/").replace("/", "."), *([stream] if stream else [])]
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9._=@+~-]+", part) or part in (".", ".."):
            raise ConfigError(f"a name that no place can have: name={part[:80]!r}")
    return root.below(*parts)


def payload_bytes(place: str) -> int:
    """How many bytes the entries of an object have, by its name; 0 if it says nothing."""
    found = parse_object(place)
    return found[1].bytes if found is not None else 0


def _parse(text: str) -> Location | None:
    match = _PLACE.match(text)
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
