"""Plans as programs of XLA, timed; recycled buffers, calls to the host."""
