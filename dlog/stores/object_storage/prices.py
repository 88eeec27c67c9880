"""List prices of Amazon S3, for what requests cost.

Source: https://aws.amazon.com/s3/pricing, S3 Standard, US East (N. Virginia), as listed in January 2025. Other regions
and other services differ.
"""

from __future__ import annotations

import enum

TB = 10**12
STORED_DOLLARS_PER_TB_MONTH = 23.0  # of the first 50 TB


class RequestKind(enum.Enum):
    """What a request asks of S3. A part of a large object, its begin and its end are puts."""

    PUT = "put"
    GET = "get"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"


DOLLARS_PER_REQUEST = {
    RequestKind.PUT: 0.005 / 1000,
    RequestKind.GET: 0.0004 / 1000,
    RequestKind.HEAD: 0.0004 / 1000,
    RequestKind.LIST: 0.005 / 1000,
    RequestKind.DELETE: 0.0,
}
