"""Protobuf's text form, as far as BookKeeper uses it in znodes: `name: value` and `name { ... }`.

Input is untrusted: every fault is a Malformed, and parsing takes linear time (no backtracking over whitespace and
comments). Source: Protocol Buffers, "Text Format Language".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dlog.wire.protobuf import Malformed

#: (name, value) in order; a value is an int, a word (str: enum or bool), a string (bytes) or nested Fields
Fields = list[tuple[str, Any]]

_DEPTH_MAX = 8
_TOKEN = re.compile(
    rb"""\s*+(?:\#[^\n]*+\s*+)*+(?:
    (?P<word>[A-Za-z_][A-Za-z0-9_.]*) |
    (?P<number>-?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})(?![A-Za-z0-9_.])) |
    (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*') |
    (?P<mark>[:{}<>,;\[\]])
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip


def parse(text: bytes) -> Fields:
    """Parse a message. Raises Malformed."""
    return _parse_fields(_tokens(text), 0, None, 0)[0]


def integer(value: Any) -> int:
    """Return value; raises Malformed unless it is a number of 64 bits."""
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise Malformed(f"not a number: value={value!r}")
    return value


def octets(value: Any) -> bytes:
    """Return value; raises Malformed unless it is a string."""
    if type(value) is not bytes:
        raise Malformed(f"not a string: value={value!r}")
    return value


def message(value: Any) -> Fields:
    """Return value; raises Malformed unless it is `{ ... }`."""
    if type(value) is not list:
        raise Malformed(f"not a message: value={value!r}")
    return value


def enumerated(value: Any, numbers: Mapping[str, int]) -> int:
    """The number of an enum word; numbers pass. Raises Malformed."""
    if type(value) is int:
        return value
    if type(value) is not str or value not in numbers:
        raise Malformed(f"not one of {sorted(numbers)}: value={value!r}")
    return numbers[value]


def quoted(value: bytes | str) -> str:
    """Quote and escape a string."""
    data = value.encode() if isinstance(value, str) else value
    return '"' + "".join(_escaped(byte) for byte in data) + '"'


def _escaped(byte: int) -> str:
    char = chr(byte)
    if char in "\"'\\":
        return "\\" + char
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    return named or (char if 32 <= byte < 127 else f"\\{byte:03o}")


def _tokens(text: bytes) -> list[tuple[str, bytes]]:
    tokens = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:].strip()
            if rest.startswith(b"#") and b"\n" not in rest:
                break
            raise Malformed(f"invalid text form: at={at} text={text[at : at + 20]!r}")
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match.group(match.lastgroup)))
        at = match.end()
    return tokens


def _parse_fields(tokens: list[tuple[str, bytes]], at: int, closing: bytes | None, depth: int) -> tuple[Fields, int]:
    if depth > _DEPTH_MAX:
        raise Malformed("messages nested too deep")
    fields: Fields = []
    while at < len(tokens):
        kind, text = tokens[at]
        if kind == "mark" and text == closing:
            return fields, at + 1
        if kind == "mark" and text in b",;":
            at += 1
            continue
        if kind != "word":
            raise Malformed(f"a field's name was expected: found={text!r}")
        name = text.decode()
        at += 1
        has_colon = _mark_at(tokens, at) == b":"
        at += has_colon
        opening = _mark_at(tokens, at)
        if opening in (b"{", b"<"):
            value, at = _parse_fields(tokens, at + 1, b"}" if opening == b"{" else b">", depth + 1)
        elif has_colon:
            value, at = _parse_scalar(tokens, at)
        else:
            raise Malformed(f"field without a value: name={name}")
        fields.append((name, value))
    if closing is not None:
        raise Malformed("message does not end")
    return fields, at


def _parse_scalar(tokens: list[tuple[str, bytes]], at: int) -> tuple[Any, int]:
    kind, text = tokens[at] if at < len(tokens) else ("end", b"")
    if kind == "number":
        return int(text, 16 if b"x" in text.lower() else 10), at + 1
    if kind == "word":
        return text.decode(), at + 1
    if kind == "string":
        pieces = []
        while at < len(tokens) and tokens[at][0] == "string":  # adjacent strings are one
            pieces.append(_unescaped(tokens[at][1][1:-1]))
            at += 1
        return b"".join(pieces), at
    raise Malformed(f"a value was expected: found={text!r}")


def _mark_at(tokens: list[tuple[str, bytes]], at: int) -> bytes:
    return tokens[at][1] if at < len(tokens) and tokens[at][0] == "mark" else b""


def _unescaped(text: bytes) -> bytes:
    def plain(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, char = match.groups()
        if octal is not None:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        if char not in _PLAIN_ESCAPES:
            raise Malformed(f"unknown escape: {char!r}")
        return _PLAIN_ESCAPES[char]

    return _ESCAPE.sub(plain, text)
