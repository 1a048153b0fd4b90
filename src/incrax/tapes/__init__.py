"""Compiled Python control flow: programs recorded under the outcome of every branch, and guards that check it."""
