"""What incrax is for: trace, simplify, depend, plan, compile, store, run.

README.md tells a call in order.
"""
