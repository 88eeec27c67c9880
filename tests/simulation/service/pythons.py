"""Other versions of Python for the comparison of traces: finds interpreters and makes an environment for each.

    python -m tests.simulation.service.pythons         # make what is missing, from requirements.lock

Invariants:
- An interpreter counts if its version is supported and its environment holds what the service imports, in the versions
  and with the hashes of requirements.lock.
- Nothing else is installed there, and no test downloads anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
HOME = ROOT / ".cache" / "pythons"
VERSIONS = ("3.11", "3.12", "3.13")
NEEDED = ("aiozk", "fastcrc", "lz4", "msgpack", "structlog", "uvloop")  # what the simulation imports


def interpreters() -> dict[str, str]:
    """The interpreters of this machine by version, with the running one among them."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in VERSIONS:
        if version in found:
            continue
        kept = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
        candidates = [*map(str, reversed(kept)), shutil.which(f"python{version}")]
        for candidate in filter(None, candidates):
            if _says(candidate) == version:
                found[version] = candidate
                break
    return {version: found[version] for version in VERSIONS if version in found}


def environments() -> dict[str, str]:
    """The interpreters that can run the simulation, by version: the running one, and the environments that were
    made."""
    made = {version: str(HOME / version / "bin" / "python") for version in interpreters()}
    made[f"{sys.version_info.major}.{sys.version_info.minor}"] = sys.executable
    return {version: path for version, path in made.items() if path == sys.executable or _is_whole(version)}


def make() -> None:
    """Make the environments that are missing. Needs the package registry."""
    wanted = HOME / "requirements.txt"
    HOME.mkdir(parents=True, exist_ok=True)
    wanted.write_text(_locked((ROOT / "requirements.lock").read_text()))
    for version, interpreter in interpreters().items():
        if interpreter == sys.executable or _is_whole(version):
            print(f"python {version}: {interpreter}")
            continue
        print(f"python {version}: making {HOME / version} from {interpreter}", flush=True)
        subprocess.run([interpreter, "-m", "venv", "--clear", str(HOME / version)], check=True)
        pip = [str(HOME / version / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(wanted)], check=True)
        (HOME / version / "made-of").write_text(wanted.read_text())


def _is_whole(version: str) -> bool:
    made_of = HOME / version / "made-of"
    return made_of.exists() and made_of.read_text() == _locked((ROOT / "requirements.lock").read_text())


def _locked(lock: str) -> str:
    """The lines of the lock that are needed here."""
    blocks = re.split(r"\n(?=[a-z0-9])", lock)
    return "\n".join(block for block in blocks if re.split(r"[=\[ ]", block, maxsplit=1)[0] in NEEDED) + "\n"


def _says(interpreter: str) -> str:
    asked = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


if __name__ == "__main__":
    make()
