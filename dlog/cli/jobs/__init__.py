"""Commands of `dlog pipeline`, one file a job."""
