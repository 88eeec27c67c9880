"""Tests the PROXY protocol: headers by the specification, cut anywhere, and hostile headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ProtocolError
from dlog.wire.proxy_protocol import (
    LOCAL,
    PREAMBLE_BYTES_MAX,
    SIGNATURE,
    V1_BYTES_MAX,
    V2_REST_MAX,
    Preamble,
    begins,
    encode_v1,
    encode_v2,
    parse,
)

#: the examples of doc/proxy-protocol.txt, and a capture of HAProxy 2.6's send-proxy-v2 on 127.0.0.1
GOOD = {
    b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n": "255.255.255.255:65535",
    b"PROXY TCP6 ffff:f:: ::1 1 2\r\n": "[ffff:f::]:1",
    b"PROXY UNKNOWN\r\n": "",
    b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n": "",
    SIGNATURE + bytes.fromhex("2111000c7f0000017f0000019c401f40"): "127.0.0.1:40000",
    SIGNATURE + bytes.fromhex("21210024") + bytes(15) + b"\1" + bytes(15) + b"\1" + bytes.fromhex("9c401f40"): (
        "[::1]:40000"
    ),
    SIGNATURE + bytes.fromhex("2111000f0a0000017f0000019c401f40040000"): "10.0.0.1:40000",
    SIGNATURE + bytes.fromhex("21000000"): "",
    SIGNATURE + bytes.fromhex("213100d8") + bytes(216): "",
    LOCAL: "",
}
BAD = [
    b"GET / HTTP/1.1\r\n",
    b"PROXY\r\n",
    b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n",
    b"PROXY TCP4 ::1 ::1 1 2\r\n",
    b"PROXY TCP4 1.2.3.400 1.2.3.4 1 2\r\n",
    b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
    b"PROXY TCP4 \xff.2.3.4 1.2.3.4 1 2\r\n",
    b"PROXY " + b"A" * V1_BYTES_MAX,
    SIGNATURE + bytes.fromhex("1111000c") + bytes(12),
    SIGNATURE + bytes.fromhex("2211000c") + bytes(12),
    SIGNATURE + bytes.fromhex("2111000b") + bytes(11),
    SIGNATURE + bytes.fromhex("2121000c") + bytes(12),
    SIGNATURE + bytes.fromhex("2111ffff"),
]


@pytest.mark.parametrize("header", GOOD)
def test_a_header_is_read_wherever_it_is_cut_and_takes_nothing_of_what_follows(header: bytes) -> None:
    for cut in range(len(header)):
        assert parse(header[:cut]) is None
    expected = Preamble(GOOD[header], len(header))
    assert parse(header) == parse(header + b"\0\0\0\x10rest") == expected


@pytest.mark.parametrize("header", BAD, ids=lambda header: repr(header[:40]))
def test_a_header_that_is_none_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(header)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(SIGNATURE.__add__) | st.binary().map(b"PROXY ".__add__))
def test_nothing_but_a_protocol_error_comes_of_any_bytes_and_what_waits_is_bounded(data: bytes) -> None:
    try:
        found = parse(data)
    except ProtocolError:
        return
    if found is None:
        assert len(data) < PREAMBLE_BYTES_MAX
        assert begins(data)
    else:
        assert 0 < found.size <= len(data)


def test_what_we_say_is_what_we_read() -> None:
    for encoder in (encode_v1, encode_v2):
        for host in ("192.0.2.7", "2001:db8::1"):
            header = encoder((host, 1234), (host, 80))
            assert parse(header) == Preamble(f"[{host}]:1234" if ":" in host else f"{host}:1234", len(header))
    assert V2_REST_MAX + 16 == PREAMBLE_BYTES_MAX
