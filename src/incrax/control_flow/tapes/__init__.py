"""Functions with Python branches, recorded path by path."""
