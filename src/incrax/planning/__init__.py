"""Stages 5 to 7: which saved values to load, which equations to run, what to save. Pure."""
