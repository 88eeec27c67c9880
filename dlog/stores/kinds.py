"""The stores that segments can be created on, by name, with the settings that each takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlog.model.segment import StoreSettings
from dlog.stores.file.options import FILE_SETTINGS
from dlog.stores.kafka.options import KAFKA_SETTINGS
from dlog.stores.ledger import LEDGER_SETTINGS
from dlog.stores.s3.options import S3_SETTINGS
from dlog.stores.s3_direct.options import S3_DIRECT_SETTINGS
from dlog.stores.settings import SettingsSchema

SCHEMAS: Mapping[str, SettingsSchema] = {
    schema.store: schema for schema in (LEDGER_SETTINGS, FILE_SETTINGS, KAFKA_SETTINGS, S3_DIRECT_SETTINGS, S3_SETTINGS)
}


def stored_settings(store: str, stored: Mapping[str, Any]) -> StoreSettings:
    """The settings of a stream's store as metadata holds them, with defaults. Those of a store that this version does
    not know stay as they are. Raises InvalidRequestError."""
    schema = SCHEMAS.get(store)
    if schema is None:
        return tuple((name, value) for name, value in stored.items() if type(value) is int)
    return schema.complete_stored(stored)
