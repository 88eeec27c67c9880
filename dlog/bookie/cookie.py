"""Decides from a bookie's cookies (one in ZooKeeper, one per directory) whether it may serve on its directories.

Source: BookKeeper, "Cookie"; reliability J11.

Invariants:
- a bookie that may have lost data does not serve: an emptied, swapped or foreign directory is refused, with advice;
- only a bookie without data anywhere is new; after an interrupted first start it still is.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dlog.errors import CookieError
from dlog.wire.bookie_info import Cookie, decode_cookie


@dataclass(frozen=True, slots=True)
class Found:
    """Contents of one directory: the text of its VERSION file, and whether it holds a bookie's data.

    lacks_manifest: it is a ledger directory, and the MANIFEST that a first start writes is missing.
    """

    directory: str
    version: str | None
    has_data: bool
    lacks_manifest: bool = False


class Verdict(enum.Enum):
    """What to do before serving."""

    STAMP = "stamp"  # a new bookie: write VERSION everywhere, then the cookie in ZooKeeper
    SERVE = "serve"
    RESTAMP = "restamp"  # its directories were moved: write their new locations, as with STAMP, then serve


def judge(expected: Cookie, registered: str | None, found: Sequence[Found], *, may_have_moved: bool = False) -> Verdict:
    """Return what to do. expected: this bookie's cookie; registered: the one in ZooKeeper, None if there is none;
    may_have_moved: accept cookies from before all directories were moved together.

    Raises CookieError: the bookie must not serve on these directories.
    """
    cookies: list[tuple[str, Cookie]] = []
    stamped = [item for item in found if item.version is not None]
    for item in stamped:
        assert item.version is not None
        cookies.append((f"directory {item.directory}", decode_cookie(item.version)))
        _compare(expected, *cookies[-1], may_have_moved=may_have_moved)
    missing = [item.directory for item in found if item.version is None]
    for item in found:
        if item.version is None and item.has_data:
            raise CookieError(
                f"directory holds a bookie's data but no VERSION file, so its bookie is unknown; put the file "
                f"back from another directory of the same bookie, or move the data away: dir={item.directory}"
            )
    if registered is not None:
        cookies.append(("the cookie in ZooKeeper", decode_cookie(registered)))
        _compare(expected, *cookies[-1], may_have_moved=may_have_moved)
        if missing:
            raise CookieError(
                f"directory is empty though this bookie stored data before: mount the right disk; if the data is gone, "
                f"let the other bookies re-replicate, delete the cookie of {expected.bookie} in ZooKeeper and start "
                f"with all directories empty: dir={','.join(missing)}"
            )
        for item in found:
            if item.lacks_manifest:
                raise CookieError(
                    f"directory has lost its MANIFEST, the list of its valid files; put the file back, or treat all "
                    f"directories of this bookie as lost: dir={item.directory}"
                )
        is_in_place = all(_lies_at(cookie) == _lies_at(expected) for _, cookie in cookies)
        return Verdict.SERVE if is_in_place else Verdict.RESTAMP
    if any(item.has_data for item in stamped):
        raise CookieError(
            f"directories hold a bookie's data but ZooKeeper knows no cookie of {expected.bookie}: it was "
            f"decommissioned, or this is another cluster; empty the directories to start as a new bookie: "
            f"dir={stamped[0].directory}"
        )
    return Verdict.STAMP


def check_registered(expected: Cookie, registered: str | None) -> None:
    """Check the cookie in ZooKeeper again before a bookie that serves is registered. expected, registered: as of
    `judge`. Raises CookieError: the bookie was taken out of the cluster, or this is another cluster."""
    if registered is None:
        raise CookieError(
            "ZooKeeper knows no cookie of the bookie any more: it was taken out of the cluster while it started or was "
            "cut off from ZooKeeper. If it was decommissioned, start a new bookie on empty directories; if ZooKeeper "
            f"lost data, keep the directories and see docs/restore.md: bookie={expected.bookie}"
        )
    _compare(expected, "the cookie in ZooKeeper", decode_cookie(registered), may_have_moved=False)


def check_stored(directories: Sequence[str], stored: Sequence[str | None]) -> None:
    """Check that these are all directories of one bookie: its journal, then its ledgers in order; perhaps moved or
    copied together. stored: the text of the VERSION file in each. Raises CookieError."""
    first: Cookie | None = None
    for directory, text in zip(directories, stored, strict=True):
        if text is None:
            raise CookieError(
                f"directory has no VERSION file, so it is not a bookie's; name the directory that --dir of the bookie "
                f"names, and its --journal-dir and --ledger-dirs if it has some: dir={directory}"
            )
        cookie = decode_cookie(text)
        first = first or cookie
        if cookie != first:
            raise CookieError(f"directories belong to several bookies: dirs={directories[0]},{directory}")
    assert first is not None
    old = _lies_at(first)
    if old != tuple(directories) and not moved_together(old, directories):
        raise CookieError(
            f"the bookie has other directories; name those with --journal-dir and --ledger-dirs, in that order: "
            f"journal={','.join(first.journal_dirs)} ledgers={','.join(first.ledger_dirs)}"
        )


def _lies_at(cookie: Cookie) -> tuple[str, ...]:
    """All directories of a bookie, in order."""
    return (*cookie.journal_dirs, *cookie.ledger_dirs)


def moved_together(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether a common parent of all `old` directories was moved and `new` are their paths now: the same names below
    it, in the same order. False if directories were swapped or moved one by one.
    """
    if len(old) != len(new):
        return False
    above = old[0]
    while above and new[0].endswith(old[0][len(above) :]):
        above = above.rpartition("/")[0]
        if all(was.startswith(f"{above}/") for was in old):
            now_above = new[0].removesuffix(old[0][len(above) :])
            return all(now == now_above + was[len(above) :] for was, now in zip(old, new, strict=True))
    return False


def _compare(expected: Cookie, where: str, cookie: Cookie, *, may_have_moved: bool) -> None:
    if cookie.instance_id != expected.instance_id:
        raise CookieError(
            f"{where} belongs to another cluster; give this cluster's ZooKeeper, or use empty directories: "
            f"theirs={cookie.instance_id} ours={expected.instance_id}"
        )
    if cookie.bookie != expected.bookie:
        raise CookieError(
            f"{where} belongs to another bookie; start it with the port or --bookie-id it had, or use empty "
            f"directories: theirs={cookie.bookie} ours={expected.bookie}"
        )
    old, new = _lies_at(cookie), _lies_at(expected)
    if len(cookie.journal_dirs) != len(expected.journal_dirs) or (
        old != new and not (may_have_moved and moved_together(old, new))
    ):
        hint = ", or with --dirs-moved if the directory above them all was moved" if moved_together(old, new) else ""
        raise CookieError(
            f"{where} was written for other directories; start with those, in that order{hint}: "
            f"journal={','.join(cookie.journal_dirs)} ledgers={','.join(cookie.ledger_dirs)}"
        )
