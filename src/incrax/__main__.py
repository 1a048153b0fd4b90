"""`python -m incrax` is the command line."""

from incrax.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
