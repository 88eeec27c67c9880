"""To which proxy a connection's streams are forwarded, and which proxy the search for an owner suspects."""

from __future__ import annotations

from proxies.routes import Routes


def test_a_route_lasts_until_the_proxy_says_no() -> None:
    routes = Routes()
    assert routes.of("s") is None
    routes.found("s", "a:1")
    routes.moved("s", "b:1")  # a late answer of a proxy that the stream is not forwarded to any more
    assert routes.of("s") == "a:1"
    routes.moved("s", "a:1")
    assert routes.of("s") is None
    assert routes.doubted("s") is None


def test_a_lost_proxy_is_doubted_once_by_each_of_its_streams() -> None:
    routes = Routes()
    for stream, address in (("s", "a:1"), ("t", "a:1"), ("u", "b:1")):
        routes.found(stream, address)
    routes.lost("a:1")
    assert [routes.of(stream) for stream in "stu"] == [None, None, "b:1"]
    assert [routes.doubted(stream) for stream in "stu"] == ["a:1", "a:1", None]
    assert routes.doubted("s") is None


def test_a_new_route_ends_the_doubt_and_a_proxy_that_leaves_in_order_is_not_doubted() -> None:
    routes = Routes()
    routes.found("s", "a:1")
    routes.lost("a:1")
    routes.found("s", "b:1")
    assert routes.doubted("s") is None
    routes.leaving("b:1")
    assert routes.of("s") is None
    assert routes.doubted("s") is None


def test_what_is_remembered_is_bounded() -> None:
    routes = Routes(routes_max=2)
    for stream in "stu":
        routes.found(stream, "a:1")
    assert len(routes) == 2
    assert routes.of("s") is None
    routes.lost("a:1")
    for stream in "vw":
        routes.found(stream, "b:1")
    routes.lost("b:1")
    assert [routes.doubted(stream) for stream in "tuvw"] == [None, None, "b:1", "b:1"]
