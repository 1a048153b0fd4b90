"""Saved values by version: what changed, what is current, what is dropped first."""
