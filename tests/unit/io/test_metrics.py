"""Tests what a process pays for metrics that nobody scrapes; tests/unit/io/test_http_server.py scrapes."""

from __future__ import annotations

import subprocess
import sys


def test_a_process_without_an_http_port_loads_no_library_for_it() -> None:
    modules = "proxies.write.__main__, proxies.read.__main__, actors.bookie.__main__, actors.recovery.__main__"
    program = f"import sys, {modules}; print({{'prometheus_client', 'h11', 'http.server'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
