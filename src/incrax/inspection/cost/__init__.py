"""What a function costs, counted on its equations."""
