"""The ledger client as pure machines: adding, reading, tailing, recovering; and placement.

The law of the room: what is confirmed is on an ack quorum of the ensemble that metadata names for it; what a recovery
concludes to be absent can never have been confirmed; a doubt is an error, never an end.
Peers are BookieIds, messages those of dlog/wire/bookie.py, metadata goes by LedgerKey.
"""
