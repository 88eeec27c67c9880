"""The command line: what a person touches. main.py lists the commands, each lives in the file of its subject.

The law of this room: a command imports what it needs when it runs; results go to stdout, everything else to stderr;
every error says what to do next; exit 0 done, 1 failed, 2 misused.
"""
