"""Tests the memory that a process may use, from the files of Linux's control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlog.io.machine_memory import memory_bytes

MiB = 1024 * 1024
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def groups(directory: Path, told: str, limits: dict[str, str]) -> tuple[Path, Path]:
    """Replace what memory_bytes reads: the process's groups, and the files below the mount."""
    own = directory / "cgroup"
    own.write_text(told)
    mount = directory / "mount"
    for name, text in limits.items():
        file = mount / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return own, mount


@pytest.mark.parametrize(
    ("told", "limits", "expected"),
    [
        ("0::/\n", {}, MACHINE),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/\n", {"memory.max": f"{64 * MiB}\n"}, 64 * MiB),
        ("0::/a/b\n", {"memory.max": "max\n", "a/memory.max": f"{96 * MiB}\n", "a/b/memory.max": "max\n"}, 96 * MiB),
        ("0::/a\n", {"a/memory.max": f"{96 * MiB}\n", "a/memory.high": f"{80 * MiB}\n"}, 80 * MiB),
        ("0::/../other\n", {"memory.max": f"{48 * MiB}\n", "other/memory.max": f"{MiB}\n"}, 48 * MiB),
        ("0::/host/only\n", {"memory.max": f"{48 * MiB}\n"}, 48 * MiB),
        (
            "4:cpu,cpuacct:/x\n3:memory:/docker/id\n0::/\n",
            {"memory/memory.limit_in_bytes": f"{32 * MiB}\n", "cpu/x/memory.limit_in_bytes": f"{MiB}\n"},
            32 * MiB,
        ),
        ("3:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ("0::/\n", {"memory.max": "no number\n"}, MACHINE),
        ("garbage\n", {"memory.max": "1\n"}, MACHINE),
    ],
)
def test_the_smallest_limit_counts(told: str, limits: dict[str, str], expected: int, tmp_path: Path) -> None:
    own, mount = groups(tmp_path, told, limits)
    assert memory_bytes(own, mount) == expected


def test_a_system_without_control_groups_has_the_machines_memory(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "none", tmp_path / "none") == MACHINE


def test_this_process_has_some() -> None:
    assert 0 < memory_bytes() <= MACHINE
