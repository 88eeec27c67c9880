"""What is asked of the service: workloads that a client like any other runs, and the checker that judges each of them.

The law of this room: it measures from outside, through the public client only; every record is self-describing; a run
whose checker is not green prints no figure.
"""
