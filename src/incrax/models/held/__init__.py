"""Representations kept across batches."""
