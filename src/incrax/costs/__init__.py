"""What a function costs: FLOPs, bytes and seconds, of itself and of its derivatives."""
