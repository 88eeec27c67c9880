"""The price of requests to S3, recognised by the names that the S3 server logs."""

from __future__ import annotations

from collections.abc import Mapping

from dlog.stores.object_storage.prices import DOLLARS_PER_REQUEST, RequestKind

_KINDS = (
    (("Delete", "Abort"), RequestKind.DELETE),
    (("List",), RequestKind.LIST),
    (("Head",), RequestKind.HEAD),
    (("Put", "Post", "Copy", "CreateMultipart", "UploadPart", "CompleteMultipart"), RequestKind.PUT),
)


def is_put(operation: str) -> bool:
    """Whether an operation, such as PutObject, has the price of a PUT."""
    return DOLLARS_PER_REQUEST[_kind_of(operation)] == DOLLARS_PER_REQUEST[RequestKind.PUT]


def request_dollars(requests: Mapping[str, int]) -> float:
    """The price of these requests: number by operation."""
    return sum(count * DOLLARS_PER_REQUEST[_kind_of(operation)] for operation, count in requests.items())


def _kind_of(operation: str) -> RequestKind:
    return next((kind for prefixes, kind in _KINDS if operation.startswith(prefixes)), RequestKind.GET)
