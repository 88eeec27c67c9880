"""A bookie closes connections that send no request, or half of one, because their number is limited."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.integration.bookie.conftest import Make
from tests.integration.bookie.raw import add_frame, packet

pytestmark = pytest.mark.zookeeper
FRAME_S = 3.0  # longer than a good client on a slow machine needs between connecting and its request


def test_who_does_not_finish_a_request_is_cut_and_who_is_idle_after_one_is_not(make_bookie: Make) -> None:
    bookie = make_bookie(frame_s=FRAME_S).start()
    with ExitStack() as held:
        idle = held.enter_context(bookie.connect())
        assert idle.add(1, 0, b"x") == 0
        late = held.enter_context(bookie.connect())
        assert late.add(3, 0, b"first") == 0
        silent, half = (held.enter_context(bookie.connect()) for _ in range(2))
        half.send(add_frame(2, 0, b"never whole")[:-1])
        late.send(add_frame(3, 1, b"second")[:10])
        for stranger in (silent, half, late):
            assert stranger.is_closed()
        assert idle.read(1, 0) == (0, packet(1, 0, b"x"))


def test_a_frame_that_takes_its_time_piece_by_piece_is_one_frame(make_bookie: Make) -> None:
    """Sending byte by byte does not gain time: the deadline runs from the beginning of the frame."""
    bookie = make_bookie(frame_s=FRAME_S).start()
    with bookie.connect() as drip:
        drip.socket.settimeout(0.05)
        with pytest.raises(ConnectionError):
            for byte in add_frame(1, 0, bytes(100_000)):
                drip.send(bytes([byte]))
                try:
                    assert drip.socket.recv(1) == b"", "no answer to half a request"
                    raise ConnectionError("closed")
                except TimeoutError:
                    continue
