"""A call in order: changes, choice, run, commit; the record of it; the pure form."""
