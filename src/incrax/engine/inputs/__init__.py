"""What a call is given: leaves, their names, types and places; data in rows."""
