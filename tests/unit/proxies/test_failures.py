"""Errors as replies: what a client gets of the error that a proxy met."""

from __future__ import annotations

import inspect

import pytest

from dlog.client.connection import failure as received
from dlog.errors import BY_CODE, ClosedError, DLogError, UnavailableError
from dlog.wire.proxy import Failed
from dlog.wire.proxy_codec import decode, encode
from proxies.connection import failure as sent

#: a value for each attribute that an error may have beside its message, location and outcome
ATTRIBUTES = {"end": "9:8:7", "expected": 5, "first": "3:4:5", "last": 6, "since": (1, 2)}


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


@pytest.mark.parametrize("cls", [cls for cls in BY_CODE.values() if cls is not ClosedError])
def test_every_attribute_of_an_error_reaches_the_client(cls: type[DLogError]) -> None:
    own = inspect.signature(cls).parameters.keys() - {"message", "location", "outcome_unknown", "kw"}
    error = cls("m", location="h:1", outcome_unknown=True, **{name: ATTRIBUTES[name] for name in own})
    found = over_the_wire(error)
    assert (type(found), vars(found)) == (cls, vars(error))


@pytest.mark.parametrize("cls", [cls for cls in BY_CODE.values() if cls is not ClosedError])
def test_an_attribute_that_is_not_known_is_left_out(cls: type[DLogError]) -> None:
    error = cls("m", outcome_unknown=False)
    assert vars(over_the_wire(error)) == vars(error)
    assert sent(7, error).detail == {}
