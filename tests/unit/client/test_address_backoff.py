"""When an address that cannot be reached is tried again."""

from __future__ import annotations

from dlog.client.address_backoff import ADDRESSES_MAX, AddressBackoff


def test_an_address_is_tried_until_it_fails_and_left_alone_for_longer_and_longer() -> None:
    reach = AddressBackoff(10.0)
    assert reach.may_try("a:1", 0.0)
    now_s, rests = 0.0, []
    for _ in range(6):
        reach.failed("a:1", now_s)
        assert not reach.may_try("a:1", now_s)
        due_s = next(now_s + s / 10 for s in range(1, 200) if reach.may_try("a:1", now_s + s / 10))
        rests.append(round(due_s - now_s, 1))
        now_s = due_s
    assert rests == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert reach.may_try("b:1", 0.0)


def test_an_address_that_was_reached_has_a_clean_record() -> None:
    reach = AddressBackoff(60.0)
    for _ in range(10):
        reach.failed("a:1", 0.0)
    reach.reached("a:1")
    assert reach.may_try("a:1", 0.0)
    reach.failed("a:1", 5.0)
    assert reach.may_try("a:1", 6.0)


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    reach = AddressBackoff(60.0)
    for number in range(ADDRESSES_MAX + 1):
        reach.failed(f"a:{number}", 0.0)
    assert reach.may_try("a:0", 0.0)
    assert not reach.may_try("a:1", 0.0)
