"""How the cost of an operation grows with the size of what it works on: `python -m loadtest growth`."""
