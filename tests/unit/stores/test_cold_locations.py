"""Locations as users write them and as metadata has them, and the options of the section [cold]."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.errors import ConfigError
from dlog.io.settings import configured, load
from dlog.stores.cold.locations import ObjectName, parse_object, payload_bytes
from dlog.stores.cold.options import ColdOptions
from dlog.stores.object_storage.locations import Location, folder_of, parse_location, parse_root


@pytest.mark.parametrize(
    "text, scheme, authority, path",
    [
        ("file:///mnt/cold", "file", "", "/mnt/cold"),
        ("file:///mnt/cold/", "file", "", "/mnt/cold"),
        ("file:///mnt/Grö ße", "file", "", "/mnt/Gr%C3%B6%20%C3%9Fe"),
        ("file:///mnt/Gr%c3%b6 %C3%9fe/", "file", "", "/mnt/Gr%C3%B6%20%C3%9Fe"),
        ("file:///mnt/100%25", "file", "", "/mnt/100%25"),
        ("file:///mnt/%61b", "file", "", "/mnt/ab"),
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://a.bucket-1/pre/fix=1", "s3", "a.bucket-1", "/pre/fix=1"),
        ("webhdfs://nn:9870/cold", "webhdfs", "nn:9870", "/cold"),
        ("swebhdfs://nn1:9871,nn2:9871/cold", "swebhdfs", "nn1:9871,nn2:9871", "/cold"),
        ("webhdfs://[::1]:9870/cold", "webhdfs", "[::1]:9870", "/cold"),
    ],
)
def test_a_root_is_a_kind_of_storage_and_a_path(text: str, scheme: str, authority: str, path: str) -> None:
    root = parse_root(text)
    assert (root.scheme, root.authority, root.path) == (scheme, authority, path)
    assert parse_root(str(root)) == root


@pytest.mark.parametrize(
    "text, hint",
    [
        ("hdfs://nn:8020/cold", "NameNode's HTTP address"),
        ("s3a://bucket/x", "write s3:// for S3"),
        ("/mnt/cold", "write file:///directory"),
        ("file://host/mnt", "write file:///directory"),
        ("file:///", "write file:///directory"),
        ("s3://b", "write"),
        ("s3://Bucket/x", "write"),
        ("webhdfs://nn/cold", "write"),
        ("webhdfs://nn:9870", "write"),
        ("file:///mnt/../etc", "write"),
        ("file:///mnt/%2e%2e/etc", "write"),
        ("file:///mnt/100%", "%25 for %"),
        ("file:///mnt/%00", "write"),
        ("file:///mnt/a\nb", "write"),
        ("s3://bucket/a b", "write"),
        ("s3://bucket/a%20b", "write"),
        ("webhdfs://nn:9870/a%20b", "write"),
        ("s3://bucket//x", "write"),
        ("ftp://host/x", "write"),
        ("", "write"),
        ("file:///mnt/\x00", "write"),
    ],
)
def test_what_is_no_root_is_refused_with_how_one_is_written(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        parse_root(text)


def test_an_object_has_a_place_that_says_whose_it_is() -> None:
    folder = folder_of(parse_root("s3://bucket/cold"), "c0ffee", "/prod/dlog", "orders")
    assert str(folder) == "s3://bucket/cold/c0ffee/prod.dlog/orders"
    place = str(folder.below(str(ObjectName(12, "0123456789abcdef", 4096))))
    assert place == f"{folder}/000000000000000012-0123456789abcdef-4096.seg"
    assert parse_object(place) == (parse_root(place), ObjectName(12, "0123456789abcdef", 4096))
    assert payload_bytes(place) == 4096
    assert parse_root("s3://bucket/cold").holds(parse_root(place))
    assert not parse_root("s3://bucket/col").holds(parse_root(place))
    assert not parse_root("s3://other/cold").holds(parse_root(place))
    assert parse_root("s3://bucket").holds(parse_root(place))


@pytest.mark.parametrize("place", ["4711", "file:///etc/passwd", "file:///cold/12-ab-1.seg", "s3://b/x.seg", ""])
def test_what_bears_no_such_name_is_no_object(place: str) -> None:
    assert parse_object(place) is None
    assert payload_bytes(place) == 0


@pytest.mark.parametrize("part", ["..", "a b", "", "a/b"])
def test_a_folder_has_plain_names(part: str) -> None:
    with pytest.raises(ConfigError):
        folder_of(Location("file", "", "/cold"), part, "/dlog")


def test_options_come_from_the_section_and_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[cold]\nroots = ["s3://bucket/cold"]\ns3_region = "eu-1"\n[write]\nport = 1\n')
    environ = {"DLOG_COLD_S3_ACCESS_KEY": "me", "DLOG_COLD_S3_SECRET_KEY": "hush", "DLOG_COLD_CACHE_BYTES_MAX": "8MiB"}
    options = load(ColdOptions, "cold", path, {}, environ=environ)
    assert options.allowed() == (parse_root("s3://bucket/cold"),)
    assert (options.s3_region, options.s3_access_key, options.cache_bytes_max) == ("eu-1", "me", 8 << 20)
    assert "hush" not in repr(options)
    assert dict(configured("cold", options, path).options)["s3_secret_key"] == "***"


@pytest.mark.parametrize(
    "environ, hint",
    [
        ({"DLOG_COLD_S3_BUCKET": "x"}, "unknown option"),
        ({"DLOG_COLD_ROOTS": "hdfs://nn:8020/x"}, "NameNode's HTTP address"),
        ({"DLOG_COLD_S3_ADDRESSING": "dns"}, "s3_addressing must be one of auto, path, virtual"),
        ({"DLOG_COLD_S3_ACCESS_KEY": "me"}, "must be set together"),
        ({"DLOG_COLD_FETCHES_MAX": "0"}, "fetches_max"),
    ],
)
def test_what_means_nothing_is_refused(environ: dict[str, str], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        load(ColdOptions, "cold", None, {}, environ=environ)


def test_hosts_with_commas_stay_together_in_the_environment() -> None:
    text = "webhdfs://nn1:9870,nn2:9870/cold,file:///mnt/cold"
    options = load(ColdOptions, "cold", None, {}, environ={"DLOG_COLD_ROOTS": text})
    assert [str(root) for root in options.allowed()] == ["webhdfs://nn1:9870,nn2:9870/cold", "file:///mnt/cold"]


def test_the_path_of_files_is_encoded_in_one_way() -> None:
    """Two texts of one directory would be two locations."""
    root = parse_root("file:///mnt/50% of ö".replace("%", "%25"))
    assert root.file_path == "/mnt/50% of ö"
    assert parse_location(str(root)) == root
    for other in ("file:///mnt/%61b", "file:///mnt/%2Fb", "file:///mnt/Gr%c3%b6", "file:///mnt/%FF%00"):
        assert parse_location(other) is None
