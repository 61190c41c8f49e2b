"""The command line."""

from flowengine.cli.commands import main

__all__ = ["main"]
