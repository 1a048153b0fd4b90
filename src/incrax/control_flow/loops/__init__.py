"""Loops whose length may change without a new program."""
