"""What serves a change: candidates, which values they want, their races, and whether saving pays at all."""
