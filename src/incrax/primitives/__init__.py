"""All that incrax knows of each primitive, one file per question."""
