"""Ready-made event facets."""

from flowengine.library.commands import (
    CommandResult,
    end_left_commands,
    offer_commands,
    run,
    sh,
    uv,
)

__all__ = ["CommandResult", "end_left_commands", "offer_commands", "run", "sh", "uv"]
