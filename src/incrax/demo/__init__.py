"""The main job as an example: which planes, airports and airlines are late? A fit, and a chain that
moves one of 4,157 effects at a time.

Uses public names only.
"""
