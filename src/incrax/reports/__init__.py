"""What ran, why, and what it cost."""
