"""What requests and space cost on S3 at list prices.

Source: aws.amazon.com/s3/pricing, S3 Standard in us-east-1 (N. Virginia), as published in 2024: the first 50 TB of a
month, without data transfer, which is free within a region.
"""

from __future__ import annotations

from collections.abc import Mapping

PUT_DOLLARS = 0.005 / 1000  # a PUT, COPY, POST or LIST
GET_DOLLARS = 0.0004 / 1000  # a GET, HEAD and all others but DELETE and CANCEL, which are free
SPACE_DOLLARS_A_TB_MONTH = 0.023 * 1000

_PUTS = ("Put", "Post", "Copy", "List", "CreateMultipart", "UploadPart", "CompleteMultipart")
_FREE = ("Delete", "Abort")


def is_put(operation: str) -> bool:
    """Whether an operation, such as PutObject, has the price of a PUT."""
    return operation.startswith(_PUTS)


def request_dollars(requests: Mapping[str, int]) -> float:
    """The price of these requests: number by operation."""
    return sum(count * _dollars(operation) for operation, count in requests.items())


def _dollars(operation: str) -> float:
    return PUT_DOLLARS if is_put(operation) else 0.0 if operation.startswith(_FREE) else GET_DOLLARS
