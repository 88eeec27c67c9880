"""Errors as replies: what a client gets of the error that a proxy met."""

from __future__ import annotations

import pytest

from dlog.client.connection import failure as received
from dlog.errors import ClosedError, DLogError, UnavailableError
from dlog.wire.proxy import Failed
from dlog.wire.proxy_codec import decode, encode
from proxies.connection import failure as sent


def over_the_wire(error: DLogError) -> DLogError:
    frame = b"".join(encode(sent(7, error)))
    message = decode(memoryview(frame)[4:])
    assert isinstance(message, Failed)
    return received(message)


@pytest.mark.parametrize("outcome_unknown", [False, True])
def test_an_owner_that_ended_is_unavailable_to_a_client_which_may_try_again(outcome_unknown: bool) -> None:
    error = over_the_wire(ClosedError("the owner ended", outcome_unknown=outcome_unknown))
    assert type(error) is UnavailableError
    assert (error.message, error.outcome_unknown) == ("the owner ended", outcome_unknown)
