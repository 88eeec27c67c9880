"""Locations of objects and of folders of objects, as text.

    file:///mnt/cold                 a directory that every process reaches under this path
    s3://bucket/prefix               S3 or compatible
    webhdfs://host:9870/path         a Hadoop file system by WebHDFS or HttpFS, swebhdfs by TLS; more hosts by commas

parse_root raises ConfigError for bad user input, parse_location returns None.

Invariants:
- paths consist of characters that need no escaping anywhere. In paths of files all others are percent-encoded, in one
  way only, so that one directory has one text. Names of objects need no encoding.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from dlog.errors import ConfigError

SCHEMES = ("file", "s3", "webhdfs", "swebhdfs")
MARKER = "marker"  # object in the folder of a cluster, made when its root was first used

_LOCATION = re.compile(
    r"(?P<scheme>[a-z0-9]+)://(?P<authority>[A-Za-z0-9.:,\[\]_-]*)(?P<path>(?:/(?:[A-Za-z0-9._=@+~-]|%[0-9A-F]{2})+)*)/?\Z"
)
_FILE = "file://"
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
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

    @property
    def file_path(self) -> str:
        """The path in the file system; only for the scheme `file`."""
        return decode_path(self.path)

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


def encode_path(path: str) -> str:
    """Encode a path of the file system as the path of a location."""
    return quote(os.fsencode(path), safe="/=@+")


def decode_path(path: str) -> str:
    """The inverse of `encode_path`."""
    return os.fsdecode(unquote_to_bytes(path))


def parse_root(text: str) -> Location:
    """Parse a root from user input. A path of files may have any printable characters, and percent-encoded ones. Raises
    ConfigError."""
    found = parse_location(text)
    if found is None and text.startswith(_FILE) and text.isprintable() and not _STRAY_PERCENT.search(text):
        found = parse_location(_FILE + encode_path(decode_path(text.removeprefix(_FILE))))
    if found is None:
        scheme = text.partition("://")[0]
        hint = _HDFS if scheme == "hdfs" else "write s3:// for S3" if scheme in ("s3a", "s3n") else _HOW
        raise ConfigError(f"invalid object location: {hint}: value={text[:100]!r}")
    return found


_HOW = (
    "write file:///directory, s3://bucket/prefix or webhdfs://host:port/path, of letters, digits and . _ = @ + ~ -; "
    "a file path may have others, and %25 for %"
)


def folder_of(root: Location, cluster: str, namespace: str, stream: str = "") -> Location:
    """The folder of a namespace's objects, or of one of its streams. Raises ConfigError."""
    parts = [cluster, namespace.strip("/").replace("/", "."), *([stream] if stream else [])]
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9._=@+~-]+", part) or part in (".", ".."):
            raise ConfigError(f"invalid name in a location, use letters, digits and . _ = @ + ~ -: name={part[:80]!r}")
    return root.below(*parts)


def parse_location(text: str) -> Location | None:
    """Parse a location; None if it is not one."""
    match = _LOCATION.match(text)
    if match is None or match["scheme"] not in SCHEMES:
        return None
    root = Location(match["scheme"], match["authority"], match["path"])
    if any(part in (".", "..") for part in root.path.split("/")) or (root.scheme != "file" and "%" in root.path):
        return None
    match root.scheme:
        case "file":
            is_encoded = encode_path(root.file_path) == root.path and "\0" not in root.file_path
            return root if not root.authority and root.path and is_encoded else None
        case "s3":
            return root if _BUCKET.match(root.authority) else None
    hosts = root.authority.split(",")
    return root if root.path and all(map(_HOST.match, hosts)) else None
