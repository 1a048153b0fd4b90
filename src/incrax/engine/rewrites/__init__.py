"""Program to program, each optional: partial sums, sibling reductions, algebra, loop-invariant
code.
"""
