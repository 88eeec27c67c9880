import pytest

import dlog
from dlog.client.address import parse_target, split_address, target_addresses
from dlog.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("dlog://a:1", ("a:1",)),
        ("a:1", ("a:1",)),
        ("dlog://a:1,b:2,a:1/", ("a:1", "b:2")),
        ("DLOG://[::1]:7400", ("[::1]:7400",)),
        (" dlog://a:1 , b:2 ", ("a:1", "b:2")),
    ],
)
def test_targets(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_target(text) == addresses


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "http://a:1", "::1:80", "a:1,,b:2", "a:²"]
)
def test_what_is_no_target_says_how_one_is_written(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"dlog://|brackets"):
        parse_target(text)


def test_the_environment_names_a_cluster_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_CONNECT", "dlog://a:1")
    assert target_addresses(None) == ("a:1",)
    assert target_addresses("b:2") == ("b:2",)
    assert dlog.connect().addresses == ("a:1",)
    monkeypatch.delenv("DLOG_CONNECT")
    with pytest.raises(InvalidRequestError, match="DLOG_CONNECT"):
        dlog.connect_sync()


def test_split() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
