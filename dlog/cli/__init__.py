"""The command line: what a person touches. main.py lists the commands, each lives in the file of its subject.

The law of this room: a command imports what it needs when it runs; results go to stdout, everything else to stderr;
every error says what to do next; exit 0 done, 1 failed, 2 misused. A command returns its exit code, never leaves by
sys.exit: in one place for all of them (main.heard) a closed pipe becomes 0, and output that cannot be written 1.
"""
