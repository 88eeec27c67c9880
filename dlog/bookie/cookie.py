"""Decides from a bookie's cookies (one in ZooKeeper, one per directory) whether it may serve on its directories.

Source: BookKeeper, "Cookie"; reliability J11.

Invariants:
- a bookie that may have lost data does not serve: an emptied, swapped or foreign directory is refused, with advice;
- only a bookie without data anywhere is new; after an interrupted first start it still is.
- Journals may be added and left out, at the end of their list. An added one is empty: it is written to only when
  ZooKeeper, and before it all older directories, name it. One that is left out must be read once more: it is not needed
  any more when all other directories name the shorter list.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    RESTAMP = "restamp"  # directories were moved, or journals added: write the new locations, as with STAMP, then serve
    LEAVE_OUT = "leave out"  # journals are not in the list any more: empty them, then write the new list as with STAMP


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
        _compare(expected, *cookies[-1], may_have_moved=may_have_moved, may_have_changed=True)
    for item in found:
        if item.version is None and item.has_data:
            raise CookieError(
                f"directory holds a bookie's data but no VERSION file, so its bookie is unknown; put the file "
                f"back from another directory of the same bookie, or move the data away: dir={item.directory}"
            )
    if registered is not None:
        known = decode_cookie(registered)
        _compare(expected, "the cookie in ZooKeeper", known, may_have_moved=may_have_moved, may_have_changed=True)
        cookies.append(("the cookie in ZooKeeper", known))
        lists = _JournalLists(expected, known, found)
        missing = [item.directory for item in found if item.version is None and item not in lists.added]
        if missing:
            raise CookieError(
                f"directory is empty though this bookie stored data before: mount the right disk; if the data is gone, "
                f"run `dlog bookie decommission {expected.bookie}`, which ends once its ledgers are re-replicated, "
                f"then start with all directories empty: dir={','.join(missing)}"
            )
        for item in found:
            if item.lacks_manifest:
                raise CookieError(
                    f"directory has lost its MANIFEST, the list of its valid files; put the file back, or take this "
                    f"bookie out by `dlog bookie decommission {expected.bookie}`, then start with all directories "
                    f"empty: dir={item.directory}"
                )
        lists.check_added()
        if lists.left_out:
            return Verdict.LEAVE_OUT
        is_in_place = all(cookie == expected for _, cookie in cookies)
        return Verdict.SERVE if is_in_place else Verdict.RESTAMP
    if any(item.has_data for item in stamped):
        raise CookieError(
            f"directories hold a bookie's data but ZooKeeper knows no cookie of {expected.bookie}: it was "
            f"decommissioned, or this is another cluster; empty the directories to start as a new bookie: "
            f"dir={stamped[0].directory}"
        )
    return Verdict.STAMP


class _JournalLists:
    """The lists of journals that the cookies of a bookie name: expected, in ZooKeeper, in its directories.

    added: journals that neither ZooKeeper nor a directory older than they names. left_out: journals behind the expected
    ones that some directory still names.
    """

    def __init__(self, expected: Cookie, known: Cookie, found: Sequence[Found]) -> None:
        count, listed = len(expected.journal_dirs), len(known.journal_dirs)
        journals = found[:count]
        stored = [decode_cookie(item.version) for item in found if item.version is not None]
        older = [
            decode_cookie(item.version) for item in (*journals[:listed], *found[count:]) if item.version is not None
        ]
        lengths = [listed, *(len(cookie.journal_dirs) for cookie in older)]
        self.added = journals[max(lengths) :]
        longest = max(older, key=lambda cookie: len(cookie.journal_dirs), default=expected)
        self.left_out = longest.journal_dirs[count:]
        self._not_in_all = journals[min(lengths) :]
        self._is_written = len(stored) == len(found) and all(cookie == expected for cookie in stored)

    def check_added(self) -> None:
        """Raises CookieError if a journal that is not in all lists has data, which may be old."""
        for item in self._not_in_all:
            if item.has_data and not self._is_written:
                raise CookieError(
                    f"a journal directory that is added to the list must be empty: dir={item.directory}. If it was "
                    f"left out of the list before, start once with the shorter list, then delete its contents"
                )


def journals_left_out(expected: Cookie, registered: str, found: Sequence[Found]) -> tuple[str, ...]:
    """The directories of journals that must be emptied before the bookie serves with the expected list. Call it after
    `judge` returned LEAVE_OUT."""
    return _JournalLists(expected, decode_cookie(registered), found).left_out


def check_left_out(expected: Cookie, left_out: Sequence[str], stored: Sequence[str | None]) -> None:
    """Check that these journals, in order, are the bookie's. stored: the text of the VERSION file in each. Raises
    CookieError."""
    whole = replace(expected, journal_dirs=(*expected.journal_dirs, *left_out))
    for directory, text in zip(left_out, stored, strict=True):
        if text is None:
            raise CookieError(
                f"a journal directory was left out of the list, but may hold entries that are nowhere else: mount it "
                f"where it was and start again, which empties it; if it is lost, so is this bookie: replace it (`dlog "
                f"bookie replace`): dir={directory}"
            )
        cookie = decode_cookie(text)
        _compare(whole, f"directory {directory}", cookie, may_have_moved=False, may_have_changed=True)


def check_registered(expected: Cookie, registered: str | None) -> None:
    """Check the cookie in ZooKeeper again before a bookie that serves is registered. expected, registered: as of
    `judge`. Raises CookieError: the bookie was taken out of the cluster, or this is another cluster."""
    if registered is None:
        raise CookieError(
            "ZooKeeper knows no cookie of the bookie any more: it was taken out of the cluster while it started or was "
            "cut off from ZooKeeper. If it was decommissioned, start a new bookie on empty directories; if ZooKeeper "
            f"lost data, keep the directories and see docs/restore.md: bookie={expected.bookie}"
        )
    _compare(
        expected, "the cookie in ZooKeeper", decode_cookie(registered), may_have_moved=False, may_have_changed=False
    )


def check_stored(directories: Sequence[str], stored: Sequence[str | None]) -> None:
    """Check that these are all directories of one bookie: its journals, then its ledgers, in order; perhaps moved or
    copied together. stored: the text of the VERSION file in each. Raises CookieError."""
    first: Cookie | None = None
    for directory, text in zip(directories, stored, strict=True):
        if text is None:
            raise CookieError(
                f"directory has no VERSION file, so it is not a bookie's; name the directory that --dir of the bookie "
                f"names, and its --journal-dirs and --ledger-dirs if it has some: dir={directory}"
            )
        cookie = decode_cookie(text)
        first = first or cookie
        if replace(cookie, journal_dirs=()) == replace(first, journal_dirs=()) and cookie != first:
            raise CookieError(
                f"the list of journals is being changed: start the bookie once, and stop it: "
                f"dirs={directories[0]},{directory}"
            )
        if cookie != first:
            raise CookieError(f"directories belong to several bookies: dirs={directories[0]},{directory}")
    assert first is not None
    old = _lies_at(first)
    if old != tuple(directories) and not moved_together(old, directories):
        raise CookieError(
            f"the bookie has other directories; name those with --journal-dirs and --ledger-dirs, in that order: "
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


def _is_prefix(cookie: Cookie, other: Cookie) -> bool:
    """Whether they have the same directories, but one has more journals, behind those of the other."""
    pairs = zip(cookie.journal_dirs, other.journal_dirs, strict=False)
    return cookie.ledger_dirs == other.ledger_dirs and all(one == another for one, another in pairs)


def _compare(expected: Cookie, where: str, cookie: Cookie, *, may_have_moved: bool, may_have_changed: bool) -> None:
    """may_have_changed: journals may have been added or left out at the end of the list. Raises CookieError."""
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
    if may_have_changed and _is_prefix(cookie, expected):
        return
    old, new = _lies_at(cookie), _lies_at(expected)
    if len(cookie.journal_dirs) != len(expected.journal_dirs) or (
        old != new and not (may_have_moved and moved_together(old, new))
    ):
        hint = ", or with --dirs-moved if the directory above them all was moved" if moved_together(old, new) else ""
        raise CookieError(
            f"{where} was written for other directories; start with those, in that order{hint}: "
            f"journal={','.join(cookie.journal_dirs)} ledgers={','.join(cookie.ledger_dirs)}; journals may be added at "
            f"the end of their list, or left out there"
        )
