"""Durable functions: the loop and the activation of a coroutine, without store and worker.

`Activation` runs the body of a `DurableFunction` until everything in it waits and returns its
calls; a later one replays it from its record (`flowengine.program.function_calls`). The other names
here are for the bodies. This package loads asyncio; `flowengine.authoring` does not import it.
"""

from flowengine.authoring.current_function import current_activation
from flowengine.authoring.functions.activation import Activation, ActivationLimits
from flowengine.authoring.functions.calls import acall, sleep, sleep_until, step, wait_for
from flowengine.authoring.functions.derived_values import changed, now, random, uuid
from flowengine.authoring.functions.durable_function import DurableFunction, durable_function
from flowengine.authoring.functions.gather_calls import gather
from flowengine.errors import Divergence, FunctionMisuse, StepFailed

__all__ = [  # noqa: RUF022 - grouped by user
    # For the layers above
    "Activation",
    "ActivationLimits",
    "DurableFunction",
    "current_activation",
    "durable_function",
    # For bodies
    "acall",
    "changed",
    "gather",
    "now",
    "random",
    "sleep",
    "sleep_until",
    "step",
    "uuid",
    "wait_for",
    # Errors
    "Divergence",
    "FunctionMisuse",
    "StepFailed",
]
