"""WHAT exists: the assets of the eight stages and their checks, one module per stage."""
