"""Stages 8 to 11: the inputs compared, plans compiled, values stored. `Store` holds all mutable state."""
