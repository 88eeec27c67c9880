"""State machines of segments and streams that are kept as objects, without I/O. Read chain.py and controller.py."""
