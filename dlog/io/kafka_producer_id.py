"""Producer ids under a transactional id, without transactions.

Each producer that asks the coordinator for the producer id of a transactional id gets the same producer id, with an
epoch above that of the producer before it. Once the leader of a partition has a batch with the new epoch, it refuses
batches with lower epochs. This also holds for batches outside of transactions. These need no commit markers, which
would take offsets, and no further requests.

Brokers expire both: the coordinator drops a transactional id that was not used for a week
(transactional.id.expiration.ms), and a leader drops the epoch of a producer that sent nothing for a day
(producer.id.expiration.ms).
Source: Kafka protocol guide, FindCoordinator and InitProducerId; KIP-360.
"""

from __future__ import annotations

from typing import TypeAlias

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactString, Int16, Int32, Int64, Schema, TaggedFields

from dlog.io.kafka_settings import ProducerId

TRANSACTION_COORDINATOR = 1  # a kind of coordinator
FENCED = frozenset({47, 90})  # error codes: the epoch is not the newest one
_NONE = ProducerId(-1, -1)
_TRANSACTION_TIMEOUT_MS = 60_000  # of transactions, of which there are none


class _Response3(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 22
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class _Request3(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    FLEXIBLE_VERSION = True
    API_KEY = 22
    API_VERSION = 3
    RESPONSE_TYPE = _Response3
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("transaction_timeout_ms", Int32),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("tags", TaggedFields),
    )


class _Response4(_Response3):
    API_VERSION = 4


class _Request4(_Request3):
    API_VERSION = 4
    RESPONSE_TYPE = _Response4


_Struct: TypeAlias = _Request3 | _Request4


class InitProducerIdRequest(Request[_Struct]):  # type: ignore[misc]  # likewise
    """Ask for a producer id. current: the caller's own, refused unless it is the newest; None: take the id from the
    producer that has it.
    aiokafka's request has no such field."""

    API_KEY = 22

    def __init__(self, transactional_id: str, current: ProducerId | None) -> None:
        self._transactional_id = transactional_id
        self._current = current or _NONE

    def build(self, request_struct_class: type[_Struct]) -> _Struct:
        return request_struct_class(self._transactional_id, _TRANSACTION_TIMEOUT_MS, *self._current, {})
