"""The benchmarks of incrax: scripts that each answer one question, and `python -m benchmarks`,
which runs them all.
"""
