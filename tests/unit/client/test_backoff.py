import random

from dlog.client.backoff import Backoff, RetryBudget


def test_the_first_failure_is_forgiven_and_delays_double_up_to_the_bound() -> None:
    backoff = Backoff(0.1, 1.0, random.Random(1))
    delays = [backoff.next_s() for _ in range(8)]
    assert delays[0] == 0.0
    for n, delay in enumerate(delays[1:]):
        whole = min(1.0, 0.1 * 2**n)
        assert whole / 2 <= delay <= whole
    backoff.reset()
    assert backoff.next_s() == 0.0


def test_a_budget_makes_wait_what_is_not_earned() -> None:
    budget = RetryBudget(2, 10.0, 0.0)
    assert [budget.take(0.0) for _ in range(4)] == [0.0, 0.0, 0.1, 0.2]
    assert budget.take(100.0) == 0.0
