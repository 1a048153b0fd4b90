"""Pages, counters, assertions and costs: readers of what the engine wrote down."""
