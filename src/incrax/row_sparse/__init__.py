"""Row-sparse values and programs: a gradient of a table that was read in a few rows is a few rows."""
