"""The commands of `incrax`, one module each; they use public names only."""
