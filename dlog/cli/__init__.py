"""The `dlog` command line. main.py lists the commands; each is in the module of its subject.

Invariants:
- a command imports what it needs when it runs;
- results go to stdout, everything else to stderr; every error names the next step;
- exit codes: 0 done, 1 failed, 2 wrong usage. A command returns its exit code and never calls sys.exit;
  main.run_flushed alone turns a closed pipe into 0 and output that cannot be written into 1.
"""
