"""Sequences and generations of a producer id."""

from __future__ import annotations

import pytest

from dlog.client.batch import Batch
from dlog.client.producer_identity import NAME_BYTES, ProducerIdentity
from dlog.model.dlsn import DLSN_INVALID, of

NAME = b"n" * NAME_BYTES


def numbered(identity: ProducerIdentity, *counts: int) -> list[Batch]:
    """Batches of so many records each, sent once."""
    batches = []
    for count in counts:
        batch = Batch(None, 0.0)
        batch.payloads = [b"x"] * count
        batch.close()
        identity.number(batch)
        batches.append(batch)
    return batches


def test_a_batch_keeps_its_sequence_within_a_generation() -> None:
    identity = ProducerIdentity(NAME)
    batches = numbered(identity, 2, 3, 1)
    identity.number(batches[0])
    assert [batch.sequence for batch in batches] == [0, 2, 5]
    assert identity.producer_id == NAME + bytes(4)


def test_the_next_generation_begins_at_the_lowest_sequence_that_is_carried_over() -> None:
    identity = ProducerIdentity(NAME)
    identity.learn_stream("a1", (1, 4))
    batches = numbered(identity, 2, 3, 1)
    identity.on_acknowledged(batches[0], of(1, 9, 0))
    identity.renew(batches[1:])
    assert (identity.producer_id, identity.replaces) == (NAME + b"\0\0\0\1", 2)
    assert identity.since == (1, 9), "the latest position known before the new id is used"
    for batch in batches[1:]:
        identity.number(batch)
    assert [(batch.sequence, batch.carried) for batch in batches] == [(0, False), (2, True), (5, True)]


def test_a_generation_that_carries_nothing_begins_above_all_sequences_ever_sent() -> None:
    identity = ProducerIdentity(NAME)
    batches = numbered(identity, 2, 3)
    identity.renew(batches[1:])
    identity.renew([])
    assert identity.replaces == 5, "the second generation began at 2 and sent nothing, the first one reached 5"


@pytest.mark.parametrize("doubt", ["may_be_written", "may_arrive_late"])
def test_it_is_final_once_the_log_has_acknowledged_a_generation_after_a_failure_in_doubt(doubt: str) -> None:
    identity = ProducerIdentity(NAME)
    final = {"nothing was sent": identity.is_final}
    identity.learn_stream("a1", (1, 4))
    [old] = numbered(identity, 1)
    identity.on_acknowledged(old, DLSN_INVALID)
    final["acknowledged"] = identity.is_final
    [refused] = numbered(identity, 1)
    identity.on_failed(refused)
    final["one is certainly not written"] = identity.is_final
    identity.renew([])
    [failed] = numbered(identity, 1)
    setattr(failed, doubt, True)
    identity.on_failed(failed)
    final["one may be written"] = identity.is_final
    identity.renew([])
    identity.on_acknowledged(old, DLSN_INVALID)
    final["only an older generation is acknowledged"] = identity.is_final
    [new] = numbered(identity, 1)
    identity.on_acknowledged(new, DLSN_INVALID)
    final["the new one is acknowledged"] = identity.is_final
    assert list(final.values()) == [True, True, True, False, False, True], final
    assert identity.reached == (1, 4), "an acknowledgement without a DLSN says no position"


def test_a_batch_that_fails_before_it_was_sent_changes_nothing() -> None:
    identity = ProducerIdentity(NAME)
    identity.learn_stream("a1", (1, 4))
    identity.on_failed(Batch(None, 0.0))
    assert (identity.is_renewal_due, identity.is_final) == (False, True)


def test_another_stream_of_the_name_is_written_under_the_next_generation() -> None:
    identity = ProducerIdentity(NAME)
    identity.forget_stream()
    assert not identity.is_renewal_due, "the id was not used"
    identity.learn_stream("a1", (1, 4))
    numbered(identity, 1)
    identity.forget_stream()
    assert (identity.is_renewal_due, identity.incarnation, identity.since, identity.is_final) == (
        True,
        None,
        None,
        True,
    )
    identity.learn_stream("b2", (1, 0))
    assert identity.since is None, "the id was used before this position"
    identity.renew([])
    assert identity.since == (1, 0)
