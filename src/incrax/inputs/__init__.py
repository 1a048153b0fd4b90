"""What a call brings: its leaves and their bits, its types, data in chunks, devices, names."""
