"""One call of one traced function, from its leaves to its outputs, and what is told about it."""
