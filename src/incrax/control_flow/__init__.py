"""Functions with Python branches, and loops of any length."""
