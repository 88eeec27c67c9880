"""Certificates for tests of TLS, made by the command `openssl` when a test needs them; the repository has none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.parts import need


class Certificate(NamedTuple):
    """PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a directory: `ca` is its PEM file; `issue` signs certificates for 127.0.0.1."""

    def __init__(self, directory: Path) -> None:
        need(shutil.which("openssl") is not None, "the command openssl", "apt-get install openssl")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.ca, self._key = self._make("ca", "-subj", "/CN=authority of tests")

    def issue(self, name: str) -> Certificate:
        names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
        return self._make(name, *names, "-CA", str(self.ca), "-CAkey", str(self._key))

    def _make(self, name: str, *arguments: str) -> Certificate:
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        files = ["-days", "2", "-out", str(made.certificate), "-keyout", str(made.key)]
        subprocess.run([*command, *files, *arguments], check=True, capture_output=True)
        return made
