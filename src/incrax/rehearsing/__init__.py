"""Calls that are not made by a user: what one would do, made ready in advance, compared with fresh ones."""
