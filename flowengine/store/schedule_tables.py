"""The tables of schedules and of their ticks."""

from __future__ import annotations

from sqlalchemy import Index

from flowengine.store.columns import (
    Table,
    id_column,
    name_column,
    partial_index,
    text_column,
    time_column,
)

# The condition of the partial index, as queries must state it.
SCHEDULE_IS_DUE = "due IS NOT NULL"


class ScheduleRow(Table):
    """A workflow that is started by the clock. Its due time guards the commit of a tick."""

    __table_args__ = (partial_index(SCHEDULE_IS_DUE, "flowengine_schedule_due", "due"),)

    tenant: str = name_column("", 64, primary_key=True)
    name: str = name_column(primary_key=True)
    workflow: str = name_column()
    program_hash: str = id_column()
    definition: str = text_column("")  #: the schedule as JSON
    source: str = name_column("", 16)  #: python, document, beat, engine
    state: str = name_column("active", 16)
    next_tick: int | None = time_column(None)  #: its nominal time
    due: int | None = time_column(None)  #: when the tick is taken; None unless active
    actor: str | None = name_column(None)  #: of the last pause or resumption
    reason: str | None = text_column()
    error: str | None = text_column()  #: why it was stopped
    created: int = time_column()
    updated: int = time_column()


class TickRow(Table):
    """The outcome of a tick, or of neighbouring ticks that have no run for the same reason."""

    __table_args__ = (Index("flowengine_tick_created", "created"),)

    tenant: str = name_column("", 64, primary_key=True)
    schedule: str = name_column(primary_key=True)
    nominal: int = time_column(primary_key=True)
    outcome: str = name_column("", 16, primary_key=True)
    last: int | None = time_column(None)  #: of several ticks
    tick_count: int | None = None  #: of several ticks; None: not counted
    reason: str | None = text_column()
    actor: str | None = name_column(None)  #: of a trigger or a backfill
    run_id: str | None = id_column(default=None)
    created: int = time_column()
