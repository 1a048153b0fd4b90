"""Plans as programs of XLA, timed; packed arguments, recycled buffers, calls to the host."""
