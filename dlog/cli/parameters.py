"""Types of the options and arguments of commands. What they refuse is wrong usage (exit 2)."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from dlog.cli.output import CommandError
from dlog.model.ids import BookieId, bookie_id
from dlog.options import parse_bytes

COPY_RATE_MIN_BYTES_S = 1024


class NonEmptyText(click.types.StringParamType):
    """Text with a character that is no space. An empty value is a shell variable without a value more often than a
    wish for the default, and the default may be another cluster."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        if not text.strip():
            self.fail("the value is empty; give one, or leave the option out", param, ctx)
        return text


class FiniteFloat(click.FloatRange):
    """A number in a range. `nan` and `inf` are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


NON_EMPTY_TEXT = NonEmptyText()

_IPV6_ADDRESS = re.compile(r"\[([0-9A-Fa-f:.]+)\](:[0-9]{1,5})\Z", re.ASCII)


def named_bookie(text: str) -> BookieId:
    """The bookie id in an argument. Of an IPv6 host it may be the address, as `dlog bookie ls` prints it: in BookKeeper
    the id is without its brackets. Raises InvalidRequestError."""
    address = _IPV6_ADDRESS.match(text)
    return bookie_id(address[1] + address[2] if address else text)


def copy_rate_bytes_s(text: str | None) -> int:
    """The bytes of payload that a command copies a second at most, by its option --rate; 0: no limit. Raises
    InvalidRequestError if it is no size, CommandError if it is below COPY_RATE_MIN_BYTES_S."""
    if text is None:
        return 0
    rate_bytes_s = parse_bytes(text)
    if rate_bytes_s < COPY_RATE_MIN_BYTES_S:
        raise CommandError(f"the rate is too low: bytes={rate_bytes_s}", "name at least 1KiB, or leave --rate out")
    return rate_bytes_s
