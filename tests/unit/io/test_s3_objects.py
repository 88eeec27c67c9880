"""The S3 client is made outside the event loop: it imports 70 MB of code, and reads a service model."""

from __future__ import annotations

import threading

import pytest

from dlog.io import s3_objects
from dlog.io.s3_objects import S3Objects
from dlog.stores.object_storage.options import ObjectStorageOptions


async def test_the_first_use_of_s3_does_not_import_it_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    make = s3_objects._client_of

    def noted(options: ObjectStorageOptions) -> object:
        imported.append(threading.current_thread().name)
        return make(options)

    monkeypatch.setattr(s3_objects, "_client_of", noted)
    options = ObjectStorageOptions(
        s3_endpoint="http://127.0.0.1:1", s3_region="r", s3_access_key="a", s3_secret_key="b"
    )
    objects = S3Objects(options)
    try:
        await objects._client()
    finally:
        await objects.close()
    assert imported and threading.main_thread().name not in imported
