"""`flowengine check --replay`: do stored durable functions fit the code that is about to run?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from flowengine.authoring import FunctionFacet, event_facet_named
from flowengine.cli.terminal import line, lines
from flowengine.engine.function_replays import FunctionReplays, ReplayedFunction
from flowengine.shown_paths import shown_path

if TYPE_CHECKING:
    from flowengine.authoring.functions import DurableFunction

_MOST = 50  #: problems that are printed; `--json` has all


def replayed(recent: int) -> list[ReplayedFunction]:
    """Replay the functions of open runs, and of runs that ended last, with imported code."""
    from flowengine.cli.database import open_engine

    with open_engine() as engine:
        replays = FunctionReplays(engine.database, engine.settings.tenant)
        return list(replays.replay(_function_named, recent=recent))


def _function_named(facet: str) -> DurableFunction | None:
    found = event_facet_named(facet)
    return found.durable if isinstance(found, FunctionFacet) else None


def show(found: Sequence[ReplayedFunction], console: Console) -> None:
    """Print the functions that do not fit, and how many of each facet were replayed."""
    told = [one for one in found if one.problem or one.warning]
    for one in told[:_MOST]:
        sign = ("✗ ", "red") if one.problem else ("! ", "yellow")
        where = f"run {one.run_id[:8]} {shown_path(one.path)}: "
        console.print(line(sign, where).append(lines(one.problem or one.warning)), soft_wrap=True)
    if len(told) > _MOST:
        console.print(line((f"… {len(told) - _MOST:,} more", "dim")))
    counts = Counter((one.facet, one.is_open) for one in found)
    for facet in sorted({one.facet for one in found}):
        broken = sum(1 for one in found if one.facet == facet and one.problem)
        numbers = f"{counts[facet, True]:,} open, {counts[facet, False]:,} ended"
        sign = ("✗ ", "red") if broken else ("✓ ", "green")
        fits = f"{broken:,} {'does' if broken == 1 else 'do'} not fit" if broken else "all fit"
        console.print(line(sign, f"{facet}: {numbers} replayed, {fits}"), soft_wrap=True)
    if not found:
        console.print(line(("✓ ", "green"), "no durable function is stored"))
