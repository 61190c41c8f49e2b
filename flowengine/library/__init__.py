"""Ready-made event facets."""

from flowengine.library.commands import CommandResult, offer_commands, run, sh, uv

__all__ = ["CommandResult", "offer_commands", "run", "sh", "uv"]
