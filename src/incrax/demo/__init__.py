"""The main job as an example: a mixture fitted to flight delays, scanned and sampled.

Uses public names only.
"""
