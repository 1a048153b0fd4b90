"""All that is known of each primitive: one entry per primitive, one file per family."""
