"""The command line; public names only."""

from incrax.cli.commands import build_parser as build_parser
from incrax.cli.commands import main as main
