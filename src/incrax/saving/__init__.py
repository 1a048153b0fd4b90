"""Values that are kept: versions, what differs from them, what is current, what goes first."""
