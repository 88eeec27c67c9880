"""The settings that a proxy gives to a new stream on ledgers, of which no setting was named."""

from __future__ import annotations

from dlog.model.segment import StreamSettings
from dlog.stores.ledger import LEDGER_SETTINGS

SETTINGS = StreamSettings(store_settings=LEDGER_SETTINGS.complete({}))
