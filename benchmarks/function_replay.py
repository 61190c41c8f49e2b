"""The cost of replaying a durable function: microseconds a call, at 100, 1,000 and 10,000 calls.

    python -m benchmarks.function_replay

Pure: no store, no worker. A function that is not kept by a process is replayed from its record, so
that this is what each of its activations costs there. The cost of a call must not grow with their
number. `live` is the first run of the same calls, with the coroutine kept.
"""

from __future__ import annotations

import time

from flowengine import event_facet
from flowengine.authoring.functions import (
    Activation,
    ActivationLimits,
    DurableFunction,
    acall,
    durable_function,
    gather,
)
from flowengine.program.function_calls import CallEnd, FunctionCall, FunctionRecord

SIZES = (100, 1_000, 10_000)
ROUNDS = 5
LIMITS = ActivationLimits(max_calls=20_000)


@event_facet(name="benchmarks.add")
def add(total: int, text: str) -> int:
    return total + len(text)


async def chain(size: int) -> int:
    total = 0
    for _ in range(size):
        total = await acall(add, total, "some text")
    return total


async def fan(size: int) -> int:
    return sum(await gather(*(acall(add, n, "some text") for n in range(size))))


async def window(size: int) -> int:
    return sum(await gather(*(acall(add, n, "some text") for n in range(size)), limit=8))


def activation(function: DurableFunction, size: int, record: FunctionRecord) -> Activation:
    inputs = {"size": size}
    return Activation(function, inputs, step_id="s", started=0, record=record, limits=LIMITS)


def recorded(function: DurableFunction, size: int) -> tuple[FunctionRecord, float]:
    """Run all calls; return the record and the seconds that it took."""
    begun = time.process_time()
    calls: list[FunctionCall] = []
    ends: list[CallEnd] = []
    kept = activation(function, size, FunctionRecord())
    progress = kept.advance()
    while progress.ended is None:
        calls += progress.calls
        new = [CallEnd(c.number, c.number, c.arguments["total"] + 9) for c in progress.calls]
        ends += new
        progress = kept.advance(new)
    spent = time.process_time() - begun
    return FunctionRecord(tuple(call.recorded() for call in calls), tuple(ends)), spent


def replayed(function: DurableFunction, size: int, record: FunctionRecord) -> float:
    begun = time.process_time()
    ended = activation(function, size, record).advance().ended
    spent = time.process_time() - begun
    assert ended is not None
    assert ended.error is None
    return spent


def main() -> None:
    print(f"{'':10}{'calls':>8}{'live µs':>10}{'replay µs':>11}   a call, the best of {ROUNDS}")
    for body in (chain, fan, window):
        function = durable_function(body, name=f"benchmarks.{body.__name__}")
        for size in SIZES:
            record, live = recorded(function, size)
            best = min(replayed(function, size, record) for _ in range(ROUNDS))
            print(f"{body.__name__:10}{size:8,}{live / size * 1e6:10.1f}{best / size * 1e6:11.1f}")


if __name__ == "__main__":
    main()
