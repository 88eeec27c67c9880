"""Tests the price of requests to S3."""

from __future__ import annotations

import pytest

from loadtest.s3_prices import is_put, request_dollars


def test_each_kind_of_request_has_its_price() -> None:
    assert request_dollars({"PutObject": 1000}) == pytest.approx(0.005)
    assert request_dollars({"ListObjectsV2": 500, "UploadPart": 500}) == pytest.approx(0.005)
    assert request_dollars({"GetObject": 500, "HeadBucket": 500}) == pytest.approx(0.0004)
    assert request_dollars({"DeleteObjects": 1000, "AbortMultipartUpload": 5}) == 0
    assert is_put("CopyObject") and not is_put("GetObject")
