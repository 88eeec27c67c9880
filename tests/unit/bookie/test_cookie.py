"""J11: which disks a bookie serves, decided from its cookies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.bookie.cookie import Found, Verdict, judge, moved_together
from dlog.errors import CookieError
from dlog.model.ids import BookieId
from dlog.wire.bookie_info import Cookie, encode_cookie

US = Cookie(BookieId("host:3181"), ("/j",), ("/l1", "/l2"), "instance")
TEXT = encode_cookie(US)
DIRS = ("/j", "/l1", "/l2")


def found(version: str | None, has_data: bool) -> list[Found]:
    return [Found(directory, version, has_data) for directory in DIRS]


def test_a_new_bookie_is_stamped() -> None:
    assert judge(US, None, found(None, False)) is Verdict.STAMP


def test_ours_is_served() -> None:
    assert judge(US, TEXT, found(TEXT, True)) is Verdict.SERVE
    assert judge(US, TEXT, found(TEXT, False)) is Verdict.SERVE


def test_a_first_start_that_was_interrupted_goes_on() -> None:
    half = [Found("/j", TEXT, False), Found("/l1", TEXT, False), Found("/l2", None, False)]
    assert judge(US, None, half) is Verdict.STAMP


@pytest.mark.parametrize("emptied", range(3))
def test_an_emptied_directory_is_refused(emptied: int) -> None:
    dirs = found(TEXT, True)
    dirs[emptied] = Found(DIRS[emptied], None, False)
    with pytest.raises(CookieError, match="empty"):
        judge(US, TEXT, dirs)


def test_all_directories_emptied_is_refused_with_the_command_that_takes_the_bookie_out() -> None:
    with pytest.raises(CookieError, match=f"mount the right disk; .* `dlog bookie decommission {US.bookie}`"):
        judge(US, TEXT, found(None, False))


def test_data_without_a_version_file_is_refused() -> None:
    with pytest.raises(CookieError, match="no VERSION"):
        judge(US, TEXT, [*found(TEXT, True)[:2], Found("/l2", None, True)])


def test_data_zookeeper_knows_nothing_of_is_refused() -> None:
    with pytest.raises(CookieError, match="ZooKeeper knows no cookie"):
        judge(US, None, found(TEXT, True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"instance_id": "other"}, "another cluster"),
        ({"bookie": BookieId("other:1")}, "another bookie"),
        ({"ledger_dirs": ("/l2", "/l1")}, "other directories"),
        ({"journal_dirs": ("/k",)}, "other directories"),
    ],
)
def test_what_is_not_ours_is_refused_wherever_it_lies(change: dict[str, object], words: str) -> None:
    foreign = encode_cookie(replace(US, **change))  # type: ignore[arg-type]
    with pytest.raises(CookieError, match=words):
        judge(US, foreign, found(TEXT, True))
    with pytest.raises(CookieError, match=words):
        judge(US, TEXT, [*found(TEXT, True)[:2], Found("/l2", foreign, True)])
    with pytest.raises(CookieError, match="not a cookie"):
        judge(US, "garbage", found(TEXT, True))


OLD = ("/data/b1/journal", "/data/b1/ledgers")


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        (OLD, ("/mnt/x/journal", "/mnt/x/ledgers"), True),
        (OLD, ("/b1/journal", "/b1/ledgers"), True),
        (OLD, ("/elsewhere/data/b1/journal", "/elsewhere/data/b1/ledgers"), True),
        (OLD, OLD, True),
        (OLD, tuple(reversed(OLD)), False),
        (OLD, ("/mnt/x/journal", "/mnt/y/ledgers"), False),
        (OLD, ("/mnt/x/journal", "/mnt/x/ledgers2"), False),
        (OLD, (*OLD, "/data/b1/more"), False),
        (("/j/j", "/a/l", "/b/l"), ("/r/j/j", "/r/a/l", "/r/b/l"), True),
        (("/j/j", "/a/l", "/b/l"), ("/r/j/j", "/r/b/l", "/r/a/l"), False),
        (("/j", "/l1", "/l2"), ("/j", "/l2", "/l1"), False),
        (("j", "l"), ("x/j", "x/l"), False),
    ],
)
def test_directories_that_were_moved_together(old: tuple[str, ...], new: tuple[str, ...], moved: bool) -> None:
    assert moved_together(old, new) is moved


def test_moved_directories_are_taken_where_they_lie_only_if_that_is_said() -> None:
    now = replace(US, journal_dirs=("/new/j",), ledger_dirs=("/new/l1", "/new/l2"))
    dirs = [Found(f"/new{directory}", TEXT, True) for directory in DIRS]
    with pytest.raises(CookieError, match="--dirs-moved"):
        judge(now, TEXT, dirs)
    assert judge(now, TEXT, dirs, may_have_moved=True) is Verdict.RESTAMP
    half = [replace(dirs[0], version=encode_cookie(now)), *dirs[1:]]
    assert judge(now, TEXT, half, may_have_moved=True) is Verdict.RESTAMP, "cut off while they were stamped"
    done = [replace(item, version=encode_cookie(now)) for item in dirs]
    assert judge(now, TEXT, done, may_have_moved=True) is Verdict.RESTAMP, "cut off before ZooKeeper heard of it"
    assert judge(now, encode_cookie(now), done) is Verdict.SERVE


def test_swapped_directories_are_refused_also_where_they_may_have_moved() -> None:
    swapped = replace(US, ledger_dirs=("/l2", "/l1"))
    with pytest.raises(CookieError, match="in that order: journal"):
        judge(swapped, TEXT, found(TEXT, True), may_have_moved=True)
    for gone in range(3):
        dirs = [Found(f"/new{directory}", TEXT, True) for directory in DIRS]
        dirs[gone] = Found(dirs[gone].directory, None, False)
        now = replace(US, journal_dirs=("/new/j",), ledger_dirs=("/new/l1", "/new/l2"))
        with pytest.raises(CookieError, match="is empty"):
            judge(now, TEXT, dirs, may_have_moved=True)
