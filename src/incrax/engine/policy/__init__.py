"""What serves a call: the whole function, a plan or segments; what was measured decides."""
