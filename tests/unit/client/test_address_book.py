"""Which proxy addresses are tried first, and which are forgotten."""

from __future__ import annotations

from dlog.client.address_book import ADDRESSES_MAX, NEAR_AGAIN_S, AddressBook


def test_addresses_are_ranked_by_what_is_known_of_them() -> None:
    book = AddressBook(("configured:1", "failed:1"), 60.0)
    book.learn(["resting:1", "named:1", "reads:1", "connected:1", "reached:1", ""])
    for address, role in (("reads:1", "read"), ("connected:1", "write"), ("reached:1", "write,read")):
        book.on_connected(address, role)
    for address in ("failed:1", "resting:1"):
        book.on_failed(address, 9.9)
    book.on_slow("reached:1", 1.0)

    def ranked(*avoid: str) -> list[str]:
        return book.ranked("write", avoid, lambda address: address in {"connected:1", "avoided:1"}, 10.0)

    first = ["connected:1", "configured:1", "reached:1", "failed:1", "named:1", "reads:1"]
    assert ranked() == [*first, "resting:1"]
    assert ranked("connected:1") == [*first[1:], "connected:1", "resting:1"]


def test_only_an_address_that_a_server_named_is_a_stranger_until_it_is_reached() -> None:
    book = AddressBook(("configured:1",), 60.0)
    book.learn(["named:1"])
    assert [book.is_stranger(address) for address in book.known] == [False, True]
    book.on_connected("named:1", "write")
    assert not book.is_stranger("named:1")


def test_the_oldest_addresses_that_are_not_in_use_are_forgotten() -> None:
    book = AddressBook(("configured:1",), 60.0)
    named = [f"proxy-{n}:1" for n in range(ADDRESSES_MAX)]
    assert not book.learn(named[:-1])
    assert book.learn(named[-1:])
    gone = book.forget_surplus({named[0]})
    assert list(book.known) == ["configured:1", named[0], *named[-(ADDRESSES_MAX * 9 // 10 - 2) :]]
    assert gone == {*named} - book.known.keys()


def test_proxies_of_the_own_region_are_tried_first_unless_they_failed_lately() -> None:
    regions = {"far:1": "us", "near:1": "eu", "also-near:1": "eu", "stranger:1": "eu"}

    def ranked(region: str, now_s: float) -> list[str]:
        book = AddressBook(("far:1", "unknown:1", "near:1", "also-near:1"), 60.0, region)
        book.learn(["reads:1"], {**regions, "reads:1": "eu", "not-known:1": "eu"})
        for address in ("far:1", "near:1"):
            book.on_connected(address, "write")
        book.on_connected("reads:1", "read")
        book.on_slow("also-near:1", 100.0)
        assert "not-known:1" not in book.known
        return book.ranked("write", (), lambda address: address == "far:1", now_s)

    assert ranked("", 101.0)[0] == "far:1", "without a region it is as if there were none: what is connected is first"
    assert ranked("eu", 101.0) == ["near:1", "unknown:1", "far:1", "also-near:1", "reads:1"]
    assert ranked("eu", 100.0 + NEAR_AGAIN_S) == ["near:1", "also-near:1", "unknown:1", "far:1", "reads:1"]
    assert ranked("us", 101.0) == ["far:1", "unknown:1", "near:1", "also-near:1", "reads:1"]
