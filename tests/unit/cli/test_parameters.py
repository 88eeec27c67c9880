"""Values of options that several commands have."""

from __future__ import annotations

import pytest

from dlog.cli.main import main
from dlog.cli.output import CommandError
from dlog.cli.parameters import COPY_RATE_MIN_BYTES_S, copy_rate_bytes_s
from dlog.io.bookie_replacement import AT_ONCE


def test_a_rate_of_copying_is_a_size_a_second() -> None:
    assert [copy_rate_bytes_s(text) for text in (None, "1KiB", "50MiB")] == [0, 1024, 50 * 1024 * 1024]
    assert COPY_RATE_MIN_BYTES_S // AT_ONCE > 0, "0 would mean no limit"
    for text in ("0", "5", "1023"):
        with pytest.raises(CommandError, match="the rate is too low"):
            copy_rate_bytes_s(text)


@pytest.mark.parametrize("command", ["bookie replace a:1 b:1", "cluster rebalance"])
def test_commands_that_copy_refuse_a_rate_below_the_minimum(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--rate", "1023"]) == 2
    assert "name at least 1KiB, or leave --rate out" in capsys.readouterr().err
