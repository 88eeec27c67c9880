"""Objects in a Hadoop file system, by WebHDFS: a NameNode's HTTP address or an HttpFS gateway.

An object is written under a temporary name and renamed when complete, so it appears whole or not at all. Of several
hosts the one that replied last is tried first, then the others if it is on standby or unreachable. Callers must read
back: whether a DataNode syncs a file that it closes is its own setting (dfs.datanode.synconclose).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
from collections.abc import AsyncIterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dlog.options import MiB
from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreError, StoreUnavailableError
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.options import ObjectStorageOptions
from dlog.stores.object_storage.port import Buffer, Creation, Found

_PART = ".part"
_REDIRECTS = (301, 302, 307)
_ANSWER_BYTES_MAX = 64 * MiB  # of a JSON reply: lists a folder of some hundred thousand objects
_REFUSED = ("AccessControlException", "SecurityException", "IllegalArgumentException", "UnsupportedOperationException")


class WebHdfsObjects:
    """See dlog/stores/object_storage/port.py. HTTP calls block, so they run in threads."""

    def __init__(self, options: ObjectStorageOptions) -> None:
        self._options = options
        self._good: dict[str, str] = {}  # hosts as configured -> the one that replied last

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        return await asyncio.to_thread(self._read, location, offset, size) if size > 0 else b""

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        return await asyncio.to_thread(self._read_end, location, size)

    async def create(self, location: Location, *, marker: Location | None = None) -> WebHdfsWriter:
        return await asyncio.to_thread(WebHdfsWriter, self, location)

    def can_create_if_absent(self, location: Location) -> bool:
        """HDFS can create a file that is absent, but not a whole one: its writer may end before the last byte."""
        return False

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        """Always raises MisconfiguredError."""
        raise MisconfiguredError(
            f"HDFS cannot create a whole object only where there is none; use s3:// or file://: location={location}"
        )

    async def delete(self, location: Location) -> None:
        with contextlib.suppress(SegmentNotFoundError):
            await asyncio.to_thread(self.ask, location, "DELETE", "DELETE")

    async def delete_many(self, locations: Sequence[Location]) -> None:
        for location in locations:
            await self.delete(location)

    async def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        yielded = 0
        async for found in self._each(folder):
            if limit is not None and yielded == limit:
                return
            if not _is_part(found) and (behind is None or found.location > str(behind)):
                yield found
                yielded += 1

    async def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        async for found in self._each(folder):
            if _is_part(found):
                yield found

    async def discard(self, left: Found) -> None:
        scheme, _, rest = left.location.partition("://")
        authority, _, path = rest.partition("/")
        await self.delete(Location(scheme, authority, f"/{path}"))

    async def now_unix_ms(self, folder: Location) -> int:
        return await asyncio.to_thread(self._now_unix_ms, folder)

    async def _each(self, folder: Location) -> AsyncIterator[Found]:
        try:
            reply = await asyncio.to_thread(self.ask, folder, "GET", "LISTSTATUS")
        except SegmentNotFoundError:
            return
        files, folders = {}, set()
        for status in reply["FileStatuses"]["FileStatus"]:
            below = folder.below(status["pathSuffix"]) if status["pathSuffix"] else folder
            if status["type"] == "DIRECTORY":
                folders.add(below)
            else:
                files[below] = Found(str(below), status["length"], status["modificationTime"])
        for below in sorted((*files, *folders), key=lambda one: f"{one.path}/" if one in folders else one.path):
            if below in files:
                yield files[below]
            else:
                async for found in self._each(below):
                    yield found

    # ---- in threads -------------------------------------------------------------------------------------------------

    def ask(self, location: Location, method: str, operation: str, **more: Any) -> dict[str, Any]:
        """Send a request; return its JSON reply."""
        answer = self._first(location, method, operation, more)
        return _map_of(_take(answer, _ANSWER_BYTES_MAX, location))

    def connect(self, location: Location, operation: str, **more: Any) -> tuple[http.client.HTTPConnection, str]:
        """Ask the NameNode where to write an object. Returns a connection to that DataNode, and the PUT target."""
        answer = self._first(location, "PUT", operation, more, follow=False)
        target = answer.headers.get("Location", "")
        answer.close()
        if answer.status not in _REDIRECTS or not target:
            raise StoreUnavailableError(f"the NameNode names no DataNode: status={answer.status} location={location}")
        return self._connection(target), _target(target)

    def _now_unix_ms(self, folder: Location) -> int:
        root = Location(folder.scheme, folder.authority, "/")
        with contextlib.closing(self._first(root, "GET", "GETFILESTATUS", {})) as answer:
            date = answer.headers.get("Date", "")
        try:
            return int(parsedate_to_datetime(date).timestamp() * 1000)
        except ValueError as error:
            raise StoreUnavailableError(f"the NameNode does not send its time: location={folder}") from error

    def _read(self, location: Location, offset: int, size: int) -> bytes:
        try:
            answer = self._first(location, "GET", "OPEN", {"offset": offset, "length": size})
        except _OutOfRangeError:
            return b""
        data = _take(answer, size, location)
        if answer.length:
            raise StoreUnavailableError(f"the DataNode sent too few bytes: location={location} bytes={len(data)}")
        return data

    def _read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        whole = int(self.ask(location, "GET", "GETFILESTATUS")["FileStatus"]["length"])
        size = min(size, whole)
        return (self._read(location, whole - size, size) if size else b""), whole

    def _first(
        self, location: Location, method: str, operation: str, more: dict[str, Any], *, follow: bool = True
    ) -> http.client.HTTPResponse:
        """The reply of the first host that gives one. Raises StoreError."""
        hosts = location.authority.split(",")
        good = self._good.get(location.authority, hosts[0])
        failure: StoreError = StoreUnavailableError(f"no host is given: location={location}")
        for host in [good, *(host for host in hosts if host != good)]:
            url = f"{'https' if location.scheme == 'swebhdfs' else 'http'}://{host}/webhdfs/v1{quote(location.path)}"
            query = {"op": operation, **self._who(), **more}
            try:
                answer = self._one(f"{url}?{urlencode(query)}", method, location, follow)
            except _StandbyError as error:
                failure = StoreUnavailableError(f"{error}: location={location}")
                continue
            self._good[location.authority] = host
            return answer
        raise failure

    def _one(self, url: str, method: str, location: Location, follow: bool) -> http.client.HTTPResponse:
        """The reply of one host. Raises _StandbyError if another should be tried."""
        for hop in range(4):
            connection = self._connection(url)
            try:
                connection.request(method, _target(url), headers={"Connection": "close"})
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                where = f"host={connection.host}:{connection.port}"
                if hop == 0:
                    raise _StandbyError(f"cannot be reached: {error}: {where}") from error
                raise StoreUnavailableError(
                    f"the DataNode cannot be reached: {error}: {where} location={location}"
                ) from error
            if answer.status in _REDIRECTS and follow:
                url = answer.headers.get("Location", "")
                answer.close()
                continue
            if answer.status >= 400:
                with contextlib.closing(answer):
                    raise _error_of(answer.status, answer.read(MiB), location)
            return answer
        raise StoreUnavailableError(f"too many redirects: location={location}")

    def _connection(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self._options.timeout_s)

    def _who(self) -> dict[str, str]:
        if self._options.webhdfs_token:
            return {"delegation": self._options.webhdfs_token}
        return {"user.name": self._options.webhdfs_user} if self._options.webhdfs_user else {}

    @property
    def copies(self) -> dict[str, int]:
        """The replication parameter of CREATE."""
        return {"replication": self._options.webhdfs_replication} if self._options.webhdfs_replication else {}


class WebHdfsWriter:
    """Sends a file to a DataNode, then renames it. Made in a thread."""

    def __init__(self, objects: WebHdfsObjects, location: Location) -> None:
        self._objects = objects
        self._location = location
        self._part = location.parent.below(f".{location.name}.{os.urandom(4).hex()}{_PART}")
        self._connection, target = objects.connect(self._part, "CREATE", overwrite="false", **objects.copies)
        try:
            self._connection.putrequest("PUT", target)
            self._connection.putheader("Content-Type", "application/octet-stream")
            self._connection.putheader("Transfer-Encoding", "chunked")
            self._connection.endheaders()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise StoreUnavailableError(f"the DataNode cannot be reached: {error}: location={location}") from error

    async def write(self, parts: Sequence[Buffer]) -> None:
        await asyncio.to_thread(self._write, parts)

    async def finish(self) -> None:
        await asyncio.to_thread(self._finish)

    async def abort(self) -> None:
        self._connection.close()
        with contextlib.suppress(StoreError):
            await self._objects.delete(self._part)

    def _write(self, parts: Sequence[Buffer]) -> None:
        size = sum(map(len, parts))
        if not size:
            return  # an empty chunk would end the file
        try:
            self._connection.send(b"%x\r\n" % size)
            self._connection.send(b"".join(parts))
            self._connection.send(b"\r\n")
        except OSError as error:
            raise StoreUnavailableError(f"lost the DataNode: {error}: location={self._location}") from error

    def _finish(self) -> None:
        try:
            self._connection.send(b"0\r\n\r\n")
            answer = self._connection.getresponse()
            with contextlib.closing(answer):
                body = answer.read(MiB)
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailableError(f"lost the DataNode: {error}: location={self._location}") from error
        finally:
            self._connection.close()
        if answer.status >= 300:
            failure = _error_of(answer.status, body, self._location)
            known = isinstance(failure, StoreError)
            raise failure if known else StoreUnavailableError(f"{failure}: location={self._location}")
        if self._rename():
            return
        self._objects.ask(self._location, "DELETE", "DELETE")  # left by an earlier writer that was killed
        if not self._rename():
            raise StoreUnavailableError(f"the object cannot be renamed: from={self._part} to={self._location}")

    def _rename(self) -> bool:
        return bool(self._objects.ask(self._part, "PUT", "RENAME", destination=self._location.path).get("boolean"))


class _StandbyError(Exception):
    """Another host may reply."""


class _OutOfRangeError(Exception):
    """The object ends before the range."""


def _error_of(status: int, body: bytes, location: Location) -> Exception:
    fields: Any = {}
    with contextlib.suppress(StoreUnavailableError):
        fields = _map_of(body).get("RemoteException", {})
    name, text = str(fields.get("exception", "")), str(fields.get("message", "")).partition("\n")[0][:300]
    if name == "StandbyException":
        return _StandbyError(text)
    if name == "FileNotFoundException" or (status == 404 and not name):
        return SegmentNotFoundError(f"no such object: location={location}")
    if "out of the range" in text:
        return _OutOfRangeError(text)
    message = f"WebHDFS answered {status} {name}: {text}: location={location}"
    return MisconfiguredError(message) if name in _REFUSED or status == 401 else StoreUnavailableError(message)


def _take(answer: http.client.HTTPResponse, bytes_max: int, location: Location) -> bytes:
    """Read a reply and close it."""
    try:
        return answer.read(bytes_max)
    except (OSError, http.client.HTTPException) as error:
        raise StoreUnavailableError(f"the reply broke off: {error}: location={location}") from error
    finally:
        answer.close()


def _map_of(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        reply = json.loads(data)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise StoreUnavailableError(f"the server does not speak WebHDFS; check the address: reply={data[:80]!r}")
    return reply


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def _is_part(found: Found) -> bool:
    name = found.location.rpartition("/")[2]
    return name.startswith(".") and name.endswith(_PART)
