"""The directories of a stopped bookie on the real disk, with a few entries."""

from __future__ import annotations

from pathlib import Path

from dlog.bookie.journal import FIRST_MARKS
from dlog.io.disk import RealDisk, replace_file
from dlog.io.ledger_dir import LedgerDir
from dlog.model.ids import BookieId
from dlog.wire.bookie_info import Cookie, encode_cookie
from tests.unit.bookie.test_ledger_dir import half, row


def stopped_bookie(directory: Path) -> str:
    """Make a bookie with ledgers 1 and 2 of 20 entries each; returns its ledger directory."""
    disk = RealDisk()
    journal, ledgers = str(directory.resolve() / "journal"), str(directory.resolve() / "ledgers")
    text = encode_cookie(Cookie(BookieId("b:1"), (journal,), (ledgers,), "some-cluster"))
    for path in (journal, ledgers):
        disk.make_dir(path)
        replace_file(disk, path, "VERSION", text.encode())
    made = LedgerDir(disk, ledgers, 1 << 20)
    made.load()
    for step in range(2):
        ids = [(ledger, entry) for ledger in (1, 2) for entry in range(step * 10, step * 10 + 10)]
        made.flush(half(*ids, body=b"body"), [row(1, step * 10 + 9), row(2, step * 10 + 9, fenced=True)], FIRST_MARKS)
    made.close()
    return ledgers
