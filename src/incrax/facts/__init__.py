"""Stages 1 to 4: a jaxpr and what is known of it. Pure: same input, same result."""
