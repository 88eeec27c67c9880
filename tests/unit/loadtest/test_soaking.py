"""Tests a soak's figures, and what it knows of the streams that it writes, without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlog
from dlog.model.ids import EntryId, SegmentNumber
from loadtest.judge import Verdict
from loadtest.soaking import Load, Sample, Soaked, SoakStream, bytes_on_disk

MB = 1_000_000


def dlsn(segment: int, entry: int, slot: int = 0) -> dlog.DLSN:
    return dlog.DLSN(SegmentNumber(segment), EntryId(entry), slot)


def samples(count: int = 120, **of_process: list[float]) -> list[Sample]:
    """One sample a second; the memory of each process grows along these points, in MB."""

    def at(points: list[float], i: int) -> int:
        return int(points[i * len(points) // count] * MB)

    return [
        Sample(float(i + 1), {name: at(points, i) for name, points in of_process.items()}, {"bookie-1": 5 * MB}, MB)
        for i in range(count)
    ]


def test_memory_at_the_end_is_compared_with_that_after_a_sixth() -> None:
    flat, grown = [9.0, 9.0, 100.0, *[100.0] * 9], [50.0, 50.0, 100.0, *[100.0] * 8, 130.0]
    soaked = Soaked(samples(write=flat, read=grown), Verdict(), read_only=0)
    assert soaked.rss_ratios() == {"write": pytest.approx(1.0), "read": pytest.approx(1.3)}
    assert soaked.figures()["rss_ratio"] == pytest.approx(1.3)


def test_one_look_that_is_out_of_line_decides_nothing() -> None:
    looks = samples(write=[100.0])
    looks[-1] = Sample(120.0, {"write": 900 * MB}, {"bookie-1": MB}, MB)
    assert Soaked(looks, Verdict(), read_only=0).rss_ratios() == {"write": pytest.approx(1.0)}


def test_a_soak_of_one_look_has_figures() -> None:
    soaked = Soaked([Sample(1.0, {"write": MB}, {"bookie-1": MB}, 0)], Verdict(), read_only=0)
    assert soaked.figures()["rss_ratio"] > 0


def test_disk_is_that_of_the_fullest_bookie_against_live_data_at_the_same_time() -> None:
    looks = [
        Sample(1.0, {"write": MB}, {"bookie-1": 100 * MB, "bookie-2": 350 * MB}, 50 * MB),
        Sample(2.0, {"write": MB}, {"bookie-1": 300 * MB, "bookie-2": 200 * MB}, 20 * MB),
        Sample(3.0, {"write": MB}, {"bookie-1": 90 * MB, "bookie-2": 80 * MB}, 30 * MB),
    ]
    figures = Soaked(looks, Verdict(), read_only=1).figures()
    assert figures["used_max_mb"] == 350 and figures["used_end_mb"] == 90 and figures["live_max_mb"] == 50
    assert figures["beyond_3x_live_mb"] == 300 - 3 * 20
    assert figures["disk_over_live"] == 3 and figures["read_only"] == 1


def batch(stream: SoakStream, count: int, at: dlog.DLSN, now_s: float) -> list[bytes]:
    made = stream.next_batch(count)
    stream.acknowledged(dlog.BatchResult(at, at.next_slot(count - 1), count, 0), now_s)
    return made


def test_live_bytes_are_what_lies_at_the_first_place_and_behind() -> None:
    stream = SoakStream("s", Load(seconds=1.0, record_bytes=100))
    batch(stream, 3, dlsn(1, 0), 1.0)
    batch(stream, 2, dlsn(1, 1), 2.0)
    batch(stream, 4, dlsn(2, 0), 3.0)
    assert stream.live_bytes == 900
    stream.truncated_before(dlsn(1, 0))
    assert stream.live_bytes == 900
    stream.truncated_before(dlsn(2, 0))
    assert stream.live_bytes == 400
    stream.truncated_before(dlsn(3, 0))
    assert stream.live_bytes == 0 and stream.sent == 9


def test_a_truncation_goes_to_a_place_that_was_acknowledged_long_enough_ago() -> None:
    stream = SoakStream("s", Load(seconds=1.0, record_bytes=100))
    assert stream.dlsn_before(9.0) is None
    batch(stream, 3, dlsn(1, 0), 1.0)
    batch(stream, 2, dlsn(1, 1), 2.0)
    assert stream.dlsn_before(0.5) is None
    assert stream.dlsn_before(1.5) == dlsn(1, 0, 2) and stream.dlsn_before(2.0) == dlsn(1, 1, 1)


def test_every_record_of_a_stream_is_judged() -> None:
    stream = SoakStream("s", Load(seconds=1.0, record_bytes=100))
    assert stream.is_followed()
    first, second = batch(stream, 3, dlsn(1, 0), 1.0), batch(stream, 2, dlsn(1, 1), 2.0)
    stream.followed(dlog.RecordBatch(dlsn(1, 0), 0, 0, first))
    assert not stream.is_followed()
    stream.followed(dlog.RecordBatch(dlsn(1, 1), 0, 0, second[:1]))
    assert not stream.is_followed()
    verdict = stream.checker.finish()
    assert (verdict.sent, verdict.acknowledged, verdict.read, verdict.lost) == (5, 5, 4, 1)


def test_bytes_on_disk_are_blocks_and_not_lengths(tmp_path: Path) -> None:
    assert bytes_on_disk(tmp_path) == 0
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "full").write_bytes(b"x" * 100_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(50_000_000)
    assert 100_000 <= bytes_on_disk(tmp_path) < 1_000_000


def test_a_stream_whose_reader_ended_is_waited_for_no_more() -> None:
    stream = SoakStream("s", Load(seconds=1.0, record_bytes=100))
    batch(stream, 3, dlsn(1, 0), 1.0)
    assert not stream.is_followed()
    stream.has_lost_its_reader = True
    assert stream.is_followed()
    assert stream.checker.finish().lost == 3, "and is judged all the same"
