"""Counts the requests of this process to S3, and what they cost at list prices, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlog.io import metrics
from dlog.stores.object_storage.prices import DOLLARS_PER_REQUEST, RequestKind


class ObjectRequests:
    """Requests to S3, of all stores of a process.

    sent: by kind. busy: those answered that the service is busy. refused_own, refused_foreign: objects that could not
    be created because there was one already: of the same call, whose answer was lost, or of another one.
    """

    def __init__(self) -> None:
        self.sent = dict.fromkeys(RequestKind, 0)
        self.busy = 0
        self.refused_own = 0
        self.refused_foreign = 0

    @property
    def dollars(self) -> float:
        return sum(number * DOLLARS_PER_REQUEST[kind] for kind, number in self.sent.items())

    def count(self, kind: RequestKind) -> None:
        self.sent[kind] += 1

    def count_refused(self, *, is_own: bool) -> None:
        if is_own:
            self.refused_own += 1
        else:
            self.refused_foreign += 1

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        sent = CounterMetricFamily("dlog_object_requests", "Requests sent to S3, by kind", labels=["kind"])
        for kind, number in self.sent.items():
            sent.add_metric([kind.value], number)
        yield sent
        what = "Objects not created because there was one already, of the same call or of another"
        refused = CounterMetricFamily("dlog_object_creates_refused", what, labels=["object"])
        refused.add_metric(["own"], self.refused_own)
        refused.add_metric(["foreign"], self.refused_foreign)
        yield refused
        busy = "Requests answered by S3 that it is busy (503)"
        yield metrics.family("object_busy", busy, self.busy, is_gauge=False)
        dollars = "What the requests cost at Amazon's list prices, without storage"
        yield metrics.family("object_request_dollars", dollars, self.dollars, is_gauge=False)


REQUESTS = ObjectRequests()
metrics.expose(REQUESTS)
