"""Names: one encoder makes a znode of a stream's name; it is injective, and its paths never leave the root. Rows
`names.*`.

A bookie's files are named by numbers only, and a ledger's znode by its id, so names of streams and bookies are all that
is encoded.
"""

from __future__ import annotations

import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import InvalidRequestError, InvalidStreamNameError
from dlog.io.zookeeper_layout import LedgerPaths, StreamPaths
from dlog.model.ids import LedgerId, SegmentNumber, Txid, bookie_id, stream_name
from dlog.model.segment import Segment
from dlog.wire.stream_metadata import decode_segment, encode_segment, segment_name
from tests.integration.hostile.table import each, row

HOSTILE: dict[str, str] = {
    "empty": "",
    "dot": ".",
    "dot-dot": "..",
    "leading-dot": ".proxies",
    "slash": "a/b",
    "climbs": "../../ledgers/00",
    "backslash": "a\\b",
    "percent-climbs": "%2e%2e%2f",
    "nul": "a\0b",
    "newline": "a\n",
    "carriage-return": "\ra",
    "escape": "a\x1b[2J",
    "space": "a b",
    "angle": "<default>",
    "long": "n" * 201,
    "longest": "n" * 1_000_000,
    "twin-cyrillic": "orders".replace("o", "\N{CYRILLIC SMALL LETTER O}"),
    "twin-fullwidth": "\N{FULLWIDTH LATIN SMALL LETTER O}rders",
    "twin-composed": "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "twin-decomposed": unicodedata.normalize("NFD", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
    "digits-arabic": "\N{ARABIC-INDIC DIGIT ONE}",
    "right-to-left": "\N{RIGHT-TO-LEFT OVERRIDE}abc",
    "zero-width": "a\N{ZERO WIDTH SPACE}b",
    "surrogate": "\ud800",
    "beyond-the-plane": "\U0001f4a5",
}
SETTINGS = settings(max_examples=400)
names = st.one_of(
    st.text(max_size=8),
    st.text(alphabet="aA.-_/%<>0\\\0", max_size=6),
    st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True),
)


def known(name: str) -> str:
    try:
        return f"taken as {stream_name(name)}"
    except InvalidStreamNameError as error:
        return f"error {error.code}"


@each("names", HOSTILE)
def test_a_hostile_name_is_refused(case: str, answer: str) -> None:
    assert known(HOSTILE[case]) == answer
    with pytest.raises(InvalidStreamNameError) as told:
        stream_name(HOSTILE[case])
    assert len(told.value.message) < 400 and told.value.message.isprintable()


@row("names.injective")
@SETTINGS
@given(st.lists(names, min_size=2, max_size=8))
def test_no_two_names_share_a_znode_and_none_leaves_the_namespace(answer: str, given_names: list[str]) -> None:
    paths = StreamPaths("/messaging/dlog")
    seen: dict[str, str] = {}
    for name in given_names:
        if known(name) == answer:
            continue
        path = paths.stream(stream_name(name))
        assert seen.setdefault(path, name) == name
        parent, _, last = path.rpartition("/")
        assert parent == paths.namespace and last == name and last not in (".", "..")
        assert not path.startswith(paths.proxies) and StreamPaths.is_stream(last)
        assert unicodedata.normalize("NFKC", path) == path and path.isascii() and path.isprintable()


@row("names.many")
def test_a_hundred_thousand_random_and_hostile_names(answer: str) -> None:
    rng = random.Random(7)
    alphabet = "abAB09._-/%\\ \0\n\N{CYRILLIC SMALL LETTER O}\N{COMBINING ACUTE ACCENT}"
    paths, seen = StreamPaths("/dlog"), dict[str, str]()
    taken = 0
    for _ in range(100_000):
        name = "".join(rng.choices(alphabet, k=rng.randrange(1, 7)))
        if known(name) == answer:
            continue
        taken += 1
        path = paths.stream(stream_name(name))
        assert seen.setdefault(path, name) == name
        assert path.count("/") == 2
    assert taken > 1000


@row("names.bookies")
@SETTINGS
@given(names)
def test_a_bookie_id_is_one_znode_too(answer: str, name: str) -> None:
    try:
        path = LedgerPaths().cookie(bookie_id(name))
    except InvalidRequestError as error:
        assert f"error {error.code}" == answer
        return
    assert path == f"/ledgers/cookies/{name}" and name.isascii() and "/" not in name and name != "readonly"


@row("names.ledgers")
@SETTINGS
@given(st.integers(0, 2**63 - 1), st.text(alphabet="/L0123456789a", max_size=30))
def test_a_ledger_and_its_znode_name_each_other(answer: str, ledger: int, garbage: str) -> None:
    paths = LedgerPaths()
    path = paths.ledger(LedgerId(ledger))
    assert paths.ledger_of(path) == ledger and path.startswith("/ledgers/")
    found = paths.ledger_of(f"/ledgers/{garbage}")
    assert found is None or paths.ledger(found) == f"/ledgers/{garbage}"
    assert answer == "one path a ledger"


@row("names.stores")
@SETTINGS
@given(st.text(alphabet="a;%/.\0\n \u00e9", min_size=1, max_size=8), st.text(alphabet="a;%/.\0\n \u00e9", max_size=8))
def test_a_place_in_a_foreign_store_is_percent_encoded(answer: str, store: str, place: str) -> None:
    """The location may hold any text, which in the segment's znode can neither end a field nor begin one."""
    segment = Segment(number=SegmentNumber(1), store=store, name=place, first_txid=Txid(1))
    data = encode_segment(segment)
    assert decode_segment(segment_name(segment), data) == segment
    assert data.count(b";") == 8 and answer == "one segment a string"
