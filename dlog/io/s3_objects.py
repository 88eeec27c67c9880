"""Objects in S3 and compatible stores, by aiobotocore (installed by `dlogd[s3]`).

The client is made at the first use (70 MB of code). An object is uploaded at once, or in parts that are joined at the
end; either way it appears whole or not at all. S3's own checksums are not used, and the signature of a request leaves
out its body: every byte has a checksum of ours, which is verified before use. So the hash of a large body does not stop
the event loop. Who must be kept from changing bytes on their way needs an endpoint with TLS, which protects them.

Invariants:
- a request that creates an object only where there is none is sent once; libraries below may still repeat it, so
  dlog/stores/object_storage/creating.py resolves the answer by the object's head;
- a service that is busy is asked more slowly, for s3_busy_s; then the request fails, and may be repeated later;
- each request that is sent is counted once, also one that repeats another.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

from dlog.io.clock import monotonic_s
from dlog.io.object_requests import REQUESTS
from dlog.io.s3_body import UploadBody
from dlog.options import MiB
from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreError, StoreUnavailableError
from dlog.stores.object_storage.creating import create_resolved
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.options import ObjectStorageOptions
from dlog.stores.object_storage.port import Buffer, Creation, Found
from dlog.stores.object_storage.prices import RequestKind

AT_ONCE_BYTES = MiB  # of a body that is sent without asking before
PART_BYTES = 16 * MiB  # of one uploaded part; two of them are in memory while an object is written
_NO_OBJECT = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchUpload"})
_REFUSED = frozenset(
    {
        *("NoSuchBucket", "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"),
        *("InvalidToken", "AuthorizationHeaderMalformed", "PermanentRedirect", "InvalidBucketName", "400"),
        *("InvalidRequest", "MethodNotAllowed", "AllAccessDisabled", "NotImplemented", "501"),
        *("RequestTimeTooSkewed", "RequestExpired"),  # a clock is wrong
        "XAdminUserNotFound",  # versitygw, for an access key that it does not know
    }
)


_BUSY = frozenset(
    {
        *("SlowDown", "ServiceUnavailable", "503", "TooManyRequests", "429", "RequestLimitExceeded"),
        *("Throttling", "ThrottlingException", "BandwidthLimitExceeded"),
    }
)
PUT, GET, HEAD = RequestKind.PUT, RequestKind.GET, RequestKind.HEAD
LIST, DELETE = RequestKind.LIST, RequestKind.DELETE
_DELAY_FIRST_S, _DELAY_MAX_S = 0.05, 5.0
_LIST_MAX, _DELETE_MAX = 1000, 1000  # of one request

T = TypeVar("T")


class S3Objects:
    """See dlog/stores/object_storage/port.py."""

    def __init__(self, options: ObjectStorageOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._made: Any = None
        self._making = asyncio.Lock()
        self._pace = RequestPace(random.Random())

    async def close(self) -> None:
        self._made = None
        await self._stack.aclose()

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        if size <= 0:
            return b""
        return (await self._get(location, f"bytes={offset}-{offset + size - 1}"))[0]

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        return await self._get(location, f"bytes=-{size}")

    async def create(self, location: Location, *, marker: Location | None = None) -> S3Writer:
        return S3Writer(await self._client(), self._ask, location)

    def can_create_if_absent(self, location: Location) -> bool:
        return True

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        client = await self._client()
        body = UploadBody(data)
        where = {"Bucket": location.authority, "Key": _key(location)}

        was_refused = False

        async def attempt() -> Creation:
            nonlocal was_refused
            try:
                put = partial(client.put_object, **where, Body=body, IfNoneMatch="*")
                await self._ask(location, PUT, put, is_repeatable=False)
            except _ExistsError:
                was_refused = True
                return Creation.EXISTS
            return Creation.MADE

        made = await create_resolved(location, body.beginning(head_bytes), attempt, self.read)
        if was_refused:
            REQUESTS.count_refused(is_own=made is Creation.MADE)
        return made

    async def delete(self, location: Location) -> None:
        client = await self._client()
        with contextlib.suppress(SegmentNotFoundError):
            await self._ask(
                location, DELETE, partial(client.delete_object, Bucket=location.authority, Key=_key(location))
            )

    async def delete_many(self, locations: Sequence[Location]) -> None:
        client = await self._client()
        for bucket in sorted({location.authority for location in locations}):
            some = [location for location in locations if location.authority == bucket]
            for at in range(0, len(some), _DELETE_MAX):
                batch = {"Objects": [{"Key": _key(one)} for one in some[at : at + _DELETE_MAX]], "Quiet": True}
                answer = await self._ask(some[at], DELETE, partial(client.delete_objects, Bucket=bucket, Delete=batch))
                for failure in answer.get("Errors", ()):
                    if failure.get("Code") not in _NO_OBJECT:
                        raise _error_of(failure, f"s3://{bucket}/{failure.get('Key')}")

    async def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        client = await self._client()
        more: dict[str, Any] = {"StartAfter": _key(behind)} if behind is not None else {}
        while limit is None or limit > 0:
            some = {} if limit is None else {"MaxKeys": min(limit, _LIST_MAX)}
            request = partial(client.list_objects_v2, Bucket=folder.authority, Prefix=_prefix(folder), **some, **more)
            page = await self._ask(folder, LIST, request)
            for item in page.get("Contents", ()):
                yield Found(_location(folder, item["Key"]), item["Size"], _unix_ms(item["LastModified"]))
            limit = None if limit is None else limit - len(page.get("Contents", ()))
            more = {"ContinuationToken": page.get("NextContinuationToken")}
            if not page.get("IsTruncated"):
                return

    async def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        client = await self._client()
        more: dict[str, Any] = {}
        while True:
            request = partial(client.list_multipart_uploads, Bucket=folder.authority, Prefix=_prefix(folder), **more)
            page = await self._ask(folder, LIST, request)
            for upload in page.get("Uploads", ()):
                yield Found(_location(folder, upload["Key"]), 0, _unix_ms(upload["Initiated"]), upload["UploadId"])
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def discard(self, left: Found) -> None:
        client = await self._client()
        bucket, _, key = left.location.removeprefix("s3://").partition("/")
        with contextlib.suppress(SegmentNotFoundError):
            request = partial(client.abort_multipart_upload, Bucket=bucket, Key=key, UploadId=left.handle)
            await self._ask(left.location, DELETE, request)

    async def now_unix_ms(self, folder: Location) -> int:
        client = await self._client()
        answer = await self._ask(folder, HEAD, partial(client.head_bucket, Bucket=folder.authority))
        try:
            date = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        except (KeyError, ValueError) as error:
            raise StoreUnavailableError(f"S3 does not send its time: bucket={folder.authority}") from error
        return _unix_ms(date)

    async def _get(self, location: Location, wanted: str) -> tuple[bytes, int]:
        """The bytes of the range that exist, and the size of the object."""
        client = await self._client()

        async def get() -> tuple[bytes, int]:
            answer = await client.get_object(Bucket=location.authority, Key=_key(location), Range=wanted)
            async with answer["Body"] as body:
                data: bytes = await body.read()
            size = str(answer.get("ContentRange", "")).rpartition("/")[2]
            return data, int(size) if size.isdecimal() else len(data)

        try:
            return await self._ask(location, GET, get)
        except _OutOfRangeError:
            return b"", 0

    async def _ask(
        self,
        location: Location | str,
        kind: RequestKind,
        request: Callable[[], Awaitable[T]],
        *,
        is_repeatable: bool = True,
    ) -> T:
        """Send a request, again while S3 is busy. is_repeatable: send it once more if it is not answered."""
        repeats = 1 if is_repeatable else 0
        end_s = monotonic_s() + self._options.s3_busy_s
        while True:
            await asyncio.sleep(self._pace.next_delay_s())
            try:
                with _errors(location):
                    REQUESTS.count(kind)
                    answer = await request()
            except _BusyError:
                REQUESTS.busy += 1
                self._pace.slow_down()
                if monotonic_s() > end_s:
                    raise
            except StoreUnavailableError:
                if not repeats:
                    raise
                repeats -= 1
            else:
                self._pace.speed_up()
                return answer

    async def _client(self) -> Any:
        async with self._making:
            if self._made is None:
                session = await asyncio.to_thread(_session)  # takes seconds: imports, JSON
                try:
                    with _errors("any"):
                        made = await self._stack.enter_async_context(_client_of(session, self._options))
                except ValueError as error:
                    raise MisconfiguredError(f"S3 client cannot be made; check the s3_* options: {error}") from error
                made.meta.events.register_last("before-call.s3", _send_small_at_once)
                self._made = made
        return self._made


class S3Writer:
    """Uploads a small object in one request, a larger one in parts: one part is sent while the next is collected."""

    def __init__(self, client: Any, ask: Callable[..., Awaitable[Any]], location: Location) -> None:
        self._client = client
        self._ask = ask
        self._location = location
        self._where = {"Bucket": location.authority, "Key": _key(location)}
        self._gathered: list[Buffer] = []
        self._bytes = 0
        self._upload = ""
        self._parts: list[dict[str, Any]] = []
        self._sending: asyncio.Task[str | StoreError] | None = None

    async def write(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            self._gathered.append(part if isinstance(part, bytes) else bytes(part))
            self._bytes += len(part)
            if self._bytes >= PART_BYTES:
                await self._send()

    async def finish(self) -> None:
        if not self._upload:
            put = partial(self._client.put_object, **self._where, Body=UploadBody(self._gathered))
            await self._ask(self._location, PUT, put)
            return
        if self._gathered:
            await self._send()
        await self._sent()
        upload = {"UploadId": self._upload, "MultipartUpload": {"Parts": self._parts}}
        complete = partial(self._client.complete_multipart_upload, **self._where, **upload)
        await self._ask(self._location, PUT, complete, is_repeatable=False)
        self._upload = ""

    async def abort(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.cancel()
            await asyncio.wait((sending,))
        upload, self._upload = self._upload, ""
        if upload:
            with contextlib.suppress(StoreError):
                abort = partial(self._client.abort_multipart_upload, **self._where, UploadId=upload)
                await self._ask(self._location, DELETE, abort)

    async def _send(self) -> None:
        if not self._upload:
            begin = partial(self._client.create_multipart_upload, **self._where)
            begun = await self._ask(self._location, PUT, begin)
            self._upload = begun["UploadId"]
        await self._sent()
        body, self._gathered, self._bytes = UploadBody(self._gathered), [], 0
        number = len(self._parts) + 1
        self._sending = asyncio.get_running_loop().create_task(
            self._put(number, body), name=f"part of {self._location}"
        )

    async def _put(self, number: int, body: UploadBody) -> str | StoreError:
        try:
            part = {"UploadId": self._upload, "PartNumber": number, "Body": body}
            reply = await self._ask(self._location, PUT, partial(self._client.upload_part, **self._where, **part))
        except StoreError as error:
            return error
        return str(reply["ETag"])

    async def _sent(self) -> None:
        """Wait until the part being uploaded has arrived."""
        sending = self._sending
        if sending is None:
            return
        await asyncio.wait((sending,))
        self._sending = None
        tag = sending.result()
        if isinstance(tag, StoreError):
            raise tag
        self._parts.append({"ETag": tag, "PartNumber": len(self._parts) + 1})


class RequestPace:
    """Delays all requests to a service that says it is busy: the delay doubles with each such answer and is halved by
    each request that is served."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._delay_s = 0.0

    def next_delay_s(self) -> float:
        """The delay of a request: between half and all of the current one."""
        return self._delay_s * (0.5 + 0.5 * self._rng.random())

    def slow_down(self) -> None:
        self._delay_s = min(_DELAY_MAX_S, max(_DELAY_FIRST_S, 2 * self._delay_s))

    def speed_up(self) -> None:
        self._delay_s = self._delay_s / 2 if self._delay_s > _DELAY_FIRST_S else 0.0


class _OutOfRangeError(Exception):
    """The object ends before the requested range."""


class _ExistsError(Exception):
    """An object is where one should be created only if there is none."""


class _BusyError(StoreUnavailableError):
    """The service serves fewer requests than it gets."""


def _session() -> Any:
    """A session that has loaded the models of S3. Raises MisconfiguredError."""
    try:
        from aiobotocore.session import get_session
    except ImportError as error:
        raise MisconfiguredError(f"S3 needs aiobotocore: pip install 'dlogd[s3]' ({error})") from None
    session = get_session()
    for part in ("service-2", "endpoint-rule-set-1", "paginators-1"):  # the loader caches the models
        session.get_component("data_loader").load_service_model("s3", part)
    return session


def _client_of(session: Any, options: ObjectStorageOptions) -> Any:
    """A client, to be entered at once: it holds a coroutine."""
    from aiobotocore.config import AioConfig

    config = AioConfig(
        s3={"addressing_style": options.s3_addressing, "payload_signing_enabled": False},  # see above
        max_pool_connections=options.s3_connections_max,
        connect_timeout=min(10.0, options.timeout_s),
        read_timeout=options.timeout_s,
        retries={"mode": "standard", "total_max_attempts": 1},  # see S3Objects._ask
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return session.create_client(
        "s3",
        endpoint_url=options.s3_endpoint or None,
        region_name=options.s3_region or None,
        aws_access_key_id=options.s3_access_key or None,
        aws_secret_access_key=options.s3_secret_key or None,
        aws_session_token=options.s3_session_token or None,
        config=config,
    )


def _send_small_at_once(params: Mapping[str, Any], **_: Any) -> None:
    """Have a small body sent with its request. The client's `Expect: 100-continue` costs a round trip; it saves sending
    a large body to a service that is busy or refuses it."""
    body = params.get("body")
    if isinstance(body, UploadBody) and len(body) <= AT_ONCE_BYTES:
        params["headers"].pop("Expect", None)


@contextlib.contextmanager
def _errors(location: Location | str) -> Iterator[None]:
    from aiohttp import ClientError as HttpError
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError, ParamValidationError

    try:
        yield
    except ClientError as error:
        raise _error_of(error.response.get("Error", {}), location) from error
    except (NoCredentialsError, NoRegionError, ParamValidationError) as error:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or s3_access_key and s3_secret_key of the section"
        raise MisconfiguredError(f"{error}; {hint}: location={location}") from error
    except (BotoCoreError, HttpError, OSError, TimeoutError) as error:
        raise StoreUnavailableError(
            f"S3 cannot be reached, check that it runs and s3_endpoint: {error}: location={location}"
        ) from error


def _error_of(error: Mapping[str, Any], location: Location | str) -> Exception:
    code, text = str(error.get("Code", "")), f"{error.get('Message', 'no reason')}: location={location}"
    if code in ("InvalidRange", "416"):
        return _OutOfRangeError(text)
    if code in ("PreconditionFailed", "412"):
        return _ExistsError(text)
    if code in _NO_OBJECT:
        return SegmentNotFoundError(f"no such object: location={location}")
    kind = MisconfiguredError if code in _REFUSED else _BusyError if code in _BUSY else StoreUnavailableError
    return kind(f"S3 answered {code}: {text}")


def _key(location: Location) -> str:
    return location.path.removeprefix("/")


def _prefix(folder: Location) -> str:
    return f"{_key(folder)}/" if folder.path else ""


def _location(folder: Location, key: str) -> str:
    return f"s3://{folder.authority}/{key}"


def _unix_ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
