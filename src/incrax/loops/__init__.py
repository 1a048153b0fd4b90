"""Loops whose length is a value, not a shape: compiled once for all lengths, and differentiable in every mode."""
