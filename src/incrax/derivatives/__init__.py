"""Derivatives with respect to parts of the arguments, evaluated incrementally."""
