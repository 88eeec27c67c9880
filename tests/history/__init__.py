"""Records the requests on one stream and their answers, and checks them: S1-S9 and S11.

    history = History()
    op = history.invoke(producer=1, first=0, count=100, at=now)        # records (1, 0)..(1, 99), one batch
    history.ok(op, now, dlsn, txid)                                    # or .failed(op, now), or .unknown(op, now)
    reader = history.open("tail-1", start_at("dlsn", dlsn), now)
    history.delivered(reader, now, dlsn, txid, payloads)               # as the client's RecordBatch has them
    history.end(reader, now, End.TAIL)
    verdict = check(history)
    assert verdict.is_green, verdict.text()

- A record names its writer (`tests.history.records.RecordMaker`): producer u32, sequence u64. A producer here is one
  ordered source of records, whatever ids the client gives its batches; its sequences grow and are never given twice.
- An operation is one batch: all of it is written or nothing. An operation without an answer is unknown: it may be in
  the log once or not at all, now or later. `failed` means certainly not written.
- `at` is in nanoseconds of one clock for the whole history: CLOCK_MONOTONIC of one machine, or a simulation's time.
- Notes that not every caller can make are optional: `confirmed` (the LAC of a segment), `owner` (which owner appends to
  a segment). They are checked where they exist.
- `notes.py` holds a history, `tape.py` writes one to a file as it happens and plays it back, `checker.py` checks it,
  `verdict.py` holds the result.

A million records in batches of a hundred are checked in about a second, and cost 100 bytes a batch and reader; `check`
may be called at any time, and again.
"""

from tests.history.checker import check
from tests.history.notes import End, History, Start, start_at
from tests.history.verdict import Breach, Verdict

__all__ = ["Breach", "End", "History", "Start", "Verdict", "check", "start_at"]
