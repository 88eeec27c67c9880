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


#: how a process gets a store that it is not configured with
HOW_TO_CONFIGURE: Mapping[str, str] = {
    FILE_SETTINGS.store: "set `directory` in [file], or DLOG_FILE_DIRECTORY",
    KAFKA_SETTINGS.store: "set `topics` in [kafka], or DLOG_KAFKA_TOPICS",
    S3_DIRECT_SETTINGS.store: "set `root` in [objects], or DLOG_OBJECTS_ROOT",
    S3_SETTINGS.store: "set `root` in [objects], or DLOG_OBJECTS_ROOT",
}


def not_configured(store: str) -> str:
    """The error text about a store that this proxy lacks."""
    how = HOW_TO_CONFIGURE.get(store, "add it to the option `stores`")
    return f"this proxy is not configured with the store, {how} for it: store={store}"


def stored_settings(store: str, stored: Mapping[str, Any]) -> StoreSettings:
    """The settings of a stream's store as metadata holds them, with defaults. Those of a store that this version does
    not know stay as they are. Raises InvalidRequestError."""
    schema = SCHEMAS.get(store)
    if schema is None:
        return tuple((name, value) for name, value in stored.items() if type(value) is int)
    return schema.complete_stored(stored)
