"""The segment store in files of a directory: one machine, no replication, no bookies."""
