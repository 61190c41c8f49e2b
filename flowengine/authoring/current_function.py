"""The durable function that the code is running in, if any.

Outside of the package of durable functions, which loads asyncio: facets ask at every call.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from flowengine.authoring.locations import user_location
from flowengine.errors import FunctionMisuse

if TYPE_CHECKING:
    from flowengine.authoring.functions.activation import Activation

running: ContextVar[Activation | None] = ContextVar("flowengine_function", default=None)

#: Whether the body of an ``async def`` function is awaited as plain Python, in a unit test: its
#: calls of facets must be awaitable then, although nothing records them.
awaited_plainly: ContextVar[bool] = ContextVar("flowengine_plain_function", default=False)

#: Constructs of traced bodies, and the Python to write in a function that is run.
REPLACEMENTS = {
    "foreach": "await gather(*(facet(item) for item in items), limit=…)",
    "when": "if condition: …",
    "attempt": "try: … except SomeError: …",
}


def current_activation() -> Activation | None:
    """Return the activation of the function whose code calls."""
    return running.get()


def is_in_function() -> bool:
    """Whether the code that calls is the body of a durable function, in a run or awaited plainly.

    Calls of facets and waits are awaitable there.
    """
    return running.get() is not None or awaited_plainly.get()


def refuse_construct(name: str) -> None:
    """Raise FunctionMisuse if a construct of traced bodies is called in a durable function."""
    if is_in_function():
        raise FunctionMisuse(
            f"{user_location()}: {name}(…) makes steps of a traced workflow, and this function is "
            f"run: write `{REPLACEMENTS[name]}`"
        )


def refuse_start(title: str) -> None:
    """Raise FunctionMisuse if a run or a turn is started in a durable function, unrecorded."""
    if running.get() is not None:
        raise FunctionMisuse(
            f"{user_location()}: {title} cannot be started so in a durable function: each replay "
            "would start one more; await its call, which is recorded once, or start it in an event "
            "facet"
        )
