"""Data in chunks of rows: traced once, an engine for each chunk, and partial results combined."""
