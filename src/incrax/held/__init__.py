"""Representations kept across batches: encoded once, read by many losses, one backward pass with the exact gradient."""
