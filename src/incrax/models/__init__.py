"""Functions with settable inputs, and representations that are kept."""
