"""The problems that the benchmarks measure, as a user writes them and as an expert hoists them by
hand.
"""
