"""State machines of segments that are kept as objects, without I/O. Read chain.py."""
