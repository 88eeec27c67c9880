"""`python -m loadtest growth`: how the cost of operations grows with streams, segments and caches."""
