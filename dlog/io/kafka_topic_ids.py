"""Requests by topic id: which topic has a name, and deleting that topic and no later one of the name.

Brokers have topic ids since Kafka 2.8. aiokafka has older versions of these requests, which name topics only.
Source: Kafka protocol guide, Metadata and DeleteTopics; KIP-516.
"""

from __future__ import annotations

from io import BytesIO

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

UNKNOWN_TOPIC_ID = 100  # an error code
_ID_BYTES = 16
_NONE = bytes(_ID_BYTES)


class _TopicId(AbstractType[str]):  # type: ignore[misc]  # aiokafka has no types
    """A topic id, as hex; "": the topic has none (yet), as soon after an upgrade of the brokers."""

    @classmethod
    def encode(cls, value: str) -> bytes:
        return bytes.fromhex(value) if value else _NONE

    @classmethod
    def decode(cls, data: BytesIO) -> str:
        found = data.read(_ID_BYTES)
        if len(found) != _ID_BYTES:
            raise ValueError("a topic id is cut off")
        return "" if found == _NONE else found.hex()


class _MetadataResponse10(Response):  # type: ignore[misc]  # likewise
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _TopicId),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("in_sync_replicas", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequest10(RequestStruct):  # type: ignore[misc]  # likewise
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = _MetadataResponse10
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", _TopicId), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicIdRequest(Request[_MetadataRequest10]):  # type: ignore[misc]  # likewise
    """Ask for the topic of a name. It creates none."""

    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_MetadataRequest10]) -> _MetadataRequest10:
        return request_struct_class([("", self._topic, {})], False, False, False, {})


class _DeleteResponse6(Response):  # type: ignore[misc]  # likewise
    API_KEY = 20
    API_VERSION = 6
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("topic_id", _TopicId),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _DeleteRequest6(RequestStruct):  # type: ignore[misc]  # likewise
    FLEXIBLE_VERSION = True
    API_KEY = 20
    API_VERSION = 6
    RESPONSE_TYPE = _DeleteResponse6
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("name", CompactString("utf-8")), ("topic_id", _TopicId), ("tags", TaggedFields)),
        ),
        ("timeout_ms", Int32),
        ("tags", TaggedFields),
    )


class DeleteByIdRequest(Request[_DeleteRequest6]):  # type: ignore[misc]  # likewise
    """Delete the topic that has this id."""

    API_KEY = 20

    def __init__(self, topic_id: str, timeout_ms: int) -> None:
        self._topic_id = topic_id
        self._timeout_ms = timeout_ms

    def build(self, request_struct_class: type[_DeleteRequest6]) -> _DeleteRequest6:
        return request_struct_class([(None, self._topic_id, {})], self._timeout_ms, {})
