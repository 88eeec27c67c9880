"""Objects in S3 and compatible stores, by aiobotocore (installed by `dlogd[s3]`).

The client is made at the first use (70 MB of code). An object is uploaded at once, or in parts that are joined at the
end; either way it appears whole or not at all. S3's own checksums are not used: every byte has a checksum of ours, and
is read back before use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

from dlog.options import MiB
from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreError, StoreUnavailableError
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.options import ObjectStorageOptions
from dlog.stores.object_storage.port import Buffer, Found

PART_BYTES = 16 * MiB  # of one uploaded part; two of them are in memory while an object is written
_NO_OBJECT = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchUpload"})
_REFUSED = frozenset(
    {
        *("NoSuchBucket", "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"),
        *("InvalidToken", "AuthorizationHeaderMalformed", "PermanentRedirect", "InvalidBucketName", "400"),
        *("InvalidRequest", "MethodNotAllowed", "AllAccessDisabled"),
    }
)


class S3Objects:
    """See dlog/stores/object_storage/port.py."""

    def __init__(self, options: ObjectStorageOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._made: Any = None
        self._making = asyncio.Lock()

    async def close(self) -> None:
        self._made = None
        await self._stack.aclose()

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        if size <= 0:
            return b""
        return (await self._get(location, f"bytes={offset}-{offset + size - 1}"))[0]

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        return await self._get(location, f"bytes=-{size}")

    async def create(self, location: Location) -> S3Writer:
        return S3Writer(await self._client(), location)

    async def delete(self, location: Location) -> None:
        client = await self._client()
        with contextlib.suppress(SegmentNotFoundError), _errors(location):
            await client.delete_object(Bucket=location.authority, Key=_key(location))

    async def list(self, folder: Location) -> AsyncIterator[Found]:
        client = await self._client()
        with _errors(folder):
            pages = client.get_paginator("list_objects_v2")
            async for page in pages.paginate(Bucket=folder.authority, Prefix=_prefix(folder)):
                for told in page.get("Contents", ()):
                    yield Found(_location(folder, told["Key"]), told["Size"], _unix_ms(told["LastModified"]))

    async def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        client = await self._client()
        with _errors(folder):
            pages = client.get_paginator("list_multipart_uploads")
            async for page in pages.paginate(Bucket=folder.authority, Prefix=_prefix(folder)):
                for told in page.get("Uploads", ()):
                    yield Found(_location(folder, told["Key"]), 0, _unix_ms(told["Initiated"]), told["UploadId"])

    async def discard(self, left: Found) -> None:
        client = await self._client()
        bucket, _, key = left.location.removeprefix("s3://").partition("/")
        with contextlib.suppress(SegmentNotFoundError), _errors(left.location):
            await client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=left.handle)

    async def _get(self, location: Location, wanted: str) -> tuple[bytes, int]:
        """The bytes of the range that exist, and the size of the object."""
        client = await self._client()
        try:
            with _errors(location):
                answer = await client.get_object(Bucket=location.authority, Key=_key(location), Range=wanted)
                async with answer["Body"] as body:
                    data: bytes = await body.read()
        except _OutOfRangeError:
            return b"", 0
        told = str(answer.get("ContentRange", "")).rpartition("/")[2]
        return data, int(told) if told.isdecimal() else len(data)

    async def _client(self) -> Any:
        async with self._making:
            if self._made is None:
                opening = await asyncio.to_thread(_client_of, self._options)  # takes seconds: imports, JSON
                try:
                    with _errors("any"):
                        self._made = await self._stack.enter_async_context(opening)
                except ValueError as error:
                    raise MisconfiguredError(f"S3 client cannot be made; check the s3_* options: {error}") from error
        return self._made


class S3Writer:
    """Uploads a small object in one request, a larger one in parts: one part is sent while the next is collected."""

    def __init__(self, client: Any, location: Location) -> None:
        self._client = client
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
            with _errors(self._location):
                await self._client.put_object(**self._where, Body=b"".join(self._gathered))
            return
        if self._gathered:
            await self._send()
        await self._sent()
        with _errors(self._location):
            told = {"Parts": self._parts}
            await self._client.complete_multipart_upload(**self._where, UploadId=self._upload, MultipartUpload=told)
        self._upload = ""

    async def abort(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.cancel()
            await asyncio.wait((sending,))
        upload, self._upload = self._upload, ""
        if upload:
            with contextlib.suppress(StoreError), _errors(self._location):
                await self._client.abort_multipart_upload(**self._where, UploadId=upload)

    async def _send(self) -> None:
        if not self._upload:
            with _errors(self._location):
                self._upload = (await self._client.create_multipart_upload(**self._where))["UploadId"]
        await self._sent()
        body, self._gathered, self._bytes = b"".join(self._gathered), [], 0
        number = len(self._parts) + 1
        self._sending = asyncio.get_running_loop().create_task(
            self._put(number, body), name=f"part of {self._location}"
        )

    async def _put(self, number: int, body: bytes) -> str | StoreError:
        try:
            with _errors(self._location):
                told = await self._client.upload_part(
                    **self._where, UploadId=self._upload, PartNumber=number, Body=body
                )
        except StoreError as error:
            return error
        return str(told["ETag"])

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


class _OutOfRangeError(Exception):
    """The object ends before the requested range."""


def _client_of(options: ObjectStorageOptions) -> Any:
    """A client, to be entered. Raises MisconfiguredError."""
    try:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
    except ImportError as error:
        raise MisconfiguredError(f"S3 needs aiobotocore: pip install 'dlogd[s3]' ({error})") from None
    config = AioConfig(
        s3={"addressing_style": options.s3_addressing},
        max_pool_connections=options.s3_connections_max,
        connect_timeout=min(10.0, options.timeout_s),
        read_timeout=options.timeout_s,
        retries={"mode": "standard", "total_max_attempts": 2},  # our callers retry too
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = get_session()
    for part in ("service-2", "endpoint-rule-set-1", "paginators-1"):  # the loader caches the models
        session.get_component("data_loader").load_service_model("s3", part)
    return session.create_client(
        "s3",
        endpoint_url=options.s3_endpoint or None,
        region_name=options.s3_region or None,
        aws_access_key_id=options.s3_access_key or None,
        aws_secret_access_key=options.s3_secret_key or None,
        aws_session_token=options.s3_session_token or None,
        config=config,
    )


@contextlib.contextmanager
def _errors(location: Location | str) -> Iterator[None]:
    from aiohttp import ClientError as HttpError
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError, ParamValidationError

    try:
        yield
    except ClientError as error:
        told = error.response.get("Error", {})
        code, text = str(told.get("Code", "")), f"{told.get('Message', error)}: location={location}"
        if code in ("InvalidRange", "416"):
            raise _OutOfRangeError from error
        if code in _NO_OBJECT:
            raise SegmentNotFoundError(f"no such object: location={location}") from error
        kind = MisconfiguredError if code in _REFUSED else StoreUnavailableError
        raise kind(f"S3 answered {code}: {text}") from error
    except (NoCredentialsError, NoRegionError, ParamValidationError) as error:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or s3_access_key and s3_secret_key of the section"
        raise MisconfiguredError(f"{error}; {hint}: location={location}") from error
    except (BotoCoreError, HttpError, OSError, TimeoutError) as error:
        raise StoreUnavailableError(f"S3 cannot be reached: {error}: location={location}") from error


def _key(location: Location) -> str:
    return location.path.removeprefix("/")


def _prefix(folder: Location) -> str:
    return f"{_key(folder)}/" if folder.path else ""


def _location(folder: Location, key: str) -> str:
    return f"s3://{folder.authority}/{key}"


def _unix_ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
