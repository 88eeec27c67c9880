import pytest

from dlog.hostport import bare_host, is_any_host, join_host_port, split_host_port


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("127.0.0.1", 80, "127.0.0.1:80"),
        ("::1", 7400, "[::1]:7400"),
        ("fe80::1%eth0", 1, "[fe80::1%eth0]:1"),
        ("größe.example", 65535, "größe.example:65535"),
    ],
)
def test_addresses_are_written_and_read_back(host: str, port: int, address: str) -> None:
    assert join_host_port(host, port) == address
    assert join_host_port(f"[{host}]" if ":" in host else host, port) == address
    assert split_host_port(address) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "a:\u00b2", "::1:80", "[::1]", "[::1]80", "[::1", "[a]:1", "a b:1",
     "a/b:1", "a:1\n", "\x1b:1", "u@h:1", "[]:1", "a..b:1", ".a:1", f"{'x' * 64}.example:1", "\udcff:1"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|brackets"):
        split_host_port(text)


def test_hosts_that_stand_alone() -> None:
    assert [bare_host(host) for host in ("[::1]", "::1", "h", "[h]", "")] == ["::1", "::1", "h", "[h]", ""]
    assert [is_any_host(host) for host in ("0.0.0.0", "::", "[::]", "", "::1", "h")] == [True] * 4 + [False] * 2
