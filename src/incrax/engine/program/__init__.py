"""A traced function as a program: simplified, priced, and which inputs each value depends on."""
