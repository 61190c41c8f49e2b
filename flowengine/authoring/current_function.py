"""The durable function that the code is running in, if any.

Outside of the package of durable functions, which loads asyncio: facets ask at every call.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowengine.authoring.functions.activation import Activation

running: ContextVar[Activation | None] = ContextVar("flowengine_function", default=None)

#: Constructs of traced bodies, and the Python to write in a function that is run.
REPLACEMENTS = {
    "foreach": "await gather(*(facet(item) for item in items), limit=…)",
    "when": "if condition: …",
    "attempt": "try: … except SomeError: …",
}


def current_activation() -> Activation | None:
    """Return the activation of the function whose code calls."""
    return running.get()


def refuse_construct(name: str) -> None:
    """Raise FunctionMisuse if a construct of traced bodies is called in a durable function."""
    if running.get() is None:
        return
    from flowengine.authoring.functions.errors import FunctionMisuse
    from flowengine.authoring.locations import user_location

    raise FunctionMisuse(
        f"{user_location()}: {name}(…) makes steps of a traced workflow, and this function is run: "
        f"write `{REPLACEMENTS[name]}`"
    )
