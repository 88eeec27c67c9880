"""Which proxy serves a stream: the ring of a region, and of all regions if that one has no proxy."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from dlog.io.metadata import ProxyInfo
from dlog.model.ids import ProxyId
from dlog.model.location import NetworkLocation
from proxies.preference import Preference

REGIONS = ("ap", "eu", "us")


def members(regions: Mapping[str, str]) -> dict[ProxyId, ProxyInfo]:
    """Proxies by id, in the region of each; their racks differ."""
    return {
        ProxyId(name): ProxyInfo(ProxyId(name), "read", f"{name}:1", location=NetworkLocation(region, f"rack-{name}"))
        for name, region in regions.items()
    }


def chosen(among: dict[ProxyId, ProxyInfo], stream: str, *near: str) -> ProxyInfo | None:
    return Preference().choose(among, stream, [NetworkLocation(region) for region in near])


@given(
    st.dictionaries(st.sampled_from([f"p{n}" for n in range(8)]), st.sampled_from(REGIONS)),
    st.text(max_size=5),
    st.lists(st.sampled_from(REGIONS), max_size=2),
)
def test_the_first_region_with_a_proxy_serves_and_no_proxy_redirects_twice(
    regions: dict[str, str], stream: str, near: list[str]
) -> None:
    among = members(regions)
    found = chosen(among, stream, *near)
    assert (found is None) == (not among)
    if found is None:
        return
    present = [region for region in near if region in regions.values()]
    if present:
        assert found.location.region == present[0]
        alone = {proxy: info for proxy, info in among.items() if info.location.region == present[0]}
        assert found == chosen(alone, stream), "the ring of the region"
    else:
        assert found == chosen(among, stream), "the ring of all"
    assert found == chosen(among, stream, found.location.region), "in its own region it is the chosen one, too"


def test_a_proxy_that_leaves_moves_only_its_own_streams_and_one_that_moves_is_seen() -> None:
    ring = Preference()
    near = [NetworkLocation("eu")]
    regions = {"a": "eu", "b": "eu", "c": "us", "d": "us"}
    before = {s: ring.choose(members(regions), s, near) for s in map(str, range(200))}
    assert {info.proxy for info in before.values() if info is not None} == {"a", "b"}
    after = {s: ring.choose(members({"b": "eu", "c": "us", "d": "us"}), s, near) for s in before}
    assert all(after[s] == info for s, info in before.items() if info is not None and info.proxy == "b")
    moved = {s: ring.choose(members({**regions, "a": "us"}), s, near) for s in before}
    assert {info.proxy for info in moved.values() if info is not None} == {"b"}
