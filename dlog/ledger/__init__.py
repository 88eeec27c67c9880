"""The ledger client, as state machines: adding, reading, tailing, recovery, placement.

Peers are BookieIds, messages are in dlog/wire/bookie.py, metadata keys are LedgerKeys.

Invariants:
- a confirmed entry is on an ack quorum of the ensemble that metadata names for it;
- an entry that a recovery leaves out was never confirmed;
- what is unknown is an error, never an end.
"""
