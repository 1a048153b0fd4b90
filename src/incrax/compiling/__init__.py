"""Plans as programs that run: executables and their seconds, buffers to write to, functions outside JAX."""
