"""How much memory this process may use: the machine's, or the limit of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

_OWN_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_LIMITS_V2 = ("memory.max", "memory.high")
_LIMITS_V1 = ("memory.limit_in_bytes",)


def memory_bytes(own_groups: Path = _OWN_GROUPS, mount: Path = _MOUNT) -> int:
    """The smallest of the machine's memory and the limits of this process's control groups and their ancestors.

    Ignores limits that cannot be read or are "max". own_groups, mount: Linux's files of control groups.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        groups = own_groups.read_text().splitlines()
    except OSError:
        return limits[0]
    for line in groups:
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            limits += _limits(mount, path, _LIMITS_V2)
        elif "memory" in controllers.split(","):
            limits += _limits(mount / "memory", path, _LIMITS_V1)
    return min(limits)


def _limits(mount: Path, path: str, names: tuple[str, ...]) -> list[int]:
    """Limits of a group and its ancestors. In a container the path may be the host's; then only the root is visible."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # outside of the visible hierarchy
        parts = []
    found: list[int] = []
    for depth in range(len(parts) + 1):
        for name in names:
            try:
                text = mount.joinpath(*parts[:depth], name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal() and int(text) > 0:
                found.append(int(text))
    return found
