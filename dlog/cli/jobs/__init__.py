"""Commands of `dlog pipeline`, a module each."""
