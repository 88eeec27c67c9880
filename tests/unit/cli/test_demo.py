from dlog.cli.demo import Appended, Kill, _batches, _library_lines, _middle
from dlog.client.batch import BatchResult
from dlog.model.dlsn import of


def result(entry: int, count: int, txid: int) -> BatchResult:
    return BatchResult(of(1, entry, 0), of(1, entry, count - 1), count, txid)


def test_batches_are_enough_for_kills_to_fall_between_them() -> None:
    lines = [b"%d" % n for n in range(1000)]
    batches = list(_batches(lines))
    assert len(batches) >= 60
    assert [line for batch in batches for line in batch] == lines
    assert list(_batches([b"one"])) == [[b"one"]]


def test_the_gap_of_a_kill_is_the_longest_wait_after_it() -> None:
    appended = Appended(times_s=[1.0, 2.0, 2.1, 5.0, 5.2, 5.3])
    appended.kills = [Kill("owner", 2.05, 1), Kill("bookie", 5.1, 2)]
    assert abs(appended.gap_s(appended.kills[0]) - 2.9) < 1e-9
    assert abs(appended.gap_s(appended.kills[1]) - 0.1) < 1e-9


def test_the_middle_is_the_first_record_of_its_txid() -> None:
    appended = Appended(batches=[result(0, 2, 5), result(1, 3, 7), result(2, 3, 7), result(3, 1, 9)])
    assert _middle(appended) == (7, 2)


def test_the_library_is_a_real_text() -> None:
    lines = _library_lines()
    assert 50_000 < len(lines) <= 300_000
