"""Load tests of dlog and of comparable systems, with a checker that verifies every record.

Invariants:
- load goes through the public client only;
- every record carries its producer, its sequence number and a CRC;
- a run that its checker does not pass prints no figures.
"""
