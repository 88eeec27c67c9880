"""J11: which disks a bookie serves, decided from its cookies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.bookie.cookie import Found, Verdict, judge
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


def test_all_directories_emptied_is_refused() -> None:
    with pytest.raises(CookieError, match="mount the right disk"):
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
