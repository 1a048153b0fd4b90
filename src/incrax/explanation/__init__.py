"""What the last call did and why, and what depends on what, for people."""
