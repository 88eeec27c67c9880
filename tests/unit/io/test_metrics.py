"""Tests the scrape endpoint: off without a port, a typed error when the port is taken."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import pytest

from dlog.errors import ConfigError
from dlog.events import BookieLost
from dlog.io import metrics


def test_events_are_counted_and_served() -> None:
    metrics.count(BookieLost("b", "test"))
    metrics.count(BookieLost("b", "test"))
    endpoint = metrics.serve(0)
    assert endpoint is not None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}/metrics") as response:
            page = response.read().decode()
        with pytest.raises(ConfigError, match=str(endpoint.port)):
            metrics.serve(endpoint.port)
    finally:
        endpoint.close()
    [line] = [line for line in page.splitlines() if line.startswith('dlog_events_total{event="bookie.lost"}')]
    assert float(line.split()[-1]) >= 2
    assert "dlog_loop_stall_seconds" in page


def test_a_process_that_is_not_scraped_does_not_load_prometheus() -> None:
    program = "import sys, proxies.write.server, actors.bookie.server; print('prometheus_client' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_no_port_no_endpoint() -> None:
    assert metrics.serve(None) is None
