"""Gradients of which only some rows are not zero."""
