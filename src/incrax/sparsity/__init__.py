"""Which derivatives can be nonzero, and how few directional derivatives find them."""
