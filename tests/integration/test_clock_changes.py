"""Schedules on the days when clocks change: documents, ticks and runs, by a clock moved by hand.

The expected ticks are those of a model that looks at every minute of the wall clock, and knows
nothing of offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest

from flowengine import event_facet
from flowengine.engine.due_schedules import DueSchedules
from flowengine.engine.recovery import serve_clock
from flowengine.engine.tick_runs import TickRuns
from flowengine.scheduling import tick_key
from flowengine.store.schedules import Schedules as ScheduleRows
from flowengine.store.schedules import TickRecord
from flowengine.testing import Flow
from flowengine.worker.published_documents import DocumentPublisher
from tests.registries import empty_registry
from tests.unit.scheduling.plain_model import ticks as ticks_of_cron

MINUTE = 60_000
EVERY = "every 15m"
#: Zone, and the moment in UTC at which its clocks change; UTC on the day of Berlin.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30)),
    ("UTC", datetime(2026, 3, 29, 1)),
]
TIMES = ["30 2 * * *", "10,45 1-3 * * *", "15 * * * *", EVERY]
#: The clock jumps over one change by default, over all of them in the long run.
GAMES = [
    pytest.param(*change, seed, marks=[pytest.mark.chaos] if seed or number != 1 else [])
    for number, change in enumerate(CHANGES)
    for seed in range(12)
]
DOCUMENT = """\
schedule: {{{times}, timezone: {zone}, catch_up: {catch_up}, overlap: allow}}
inputs: {{at: {{type: text, default: "${{tick.time}}"}}}}
tasks: {{note: {{call: clock.note_time, with: {{at: "${{inputs.at}}"}}}}}}
result: "${{tasks.note.result}}"
"""


def milliseconds(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1000)


class World:
    """A folder of scheduled documents, and the processes that serve it one after the other."""

    def __init__(self, url: str, folder: Path, zone: str, first: datetime) -> None:
        self.url, self.folder, self.zone, self.first = url, folder, zone, first
        self.now = self.latest = milliseconds(first)
        self.times: dict[str, str] = {}
        folder.mkdir()

    def write(self, name: str, times: str, catch_up: str) -> None:
        self.times[name] = times
        field = "every: 15m" if times == EVERY else f"cron: '{times}'"
        text = DOCUMENT.format(times=field, zone=self.zone, catch_up=catch_up)
        (self.folder / f"{name}.yml").write_text(text)

    @contextmanager
    def process(self) -> Iterator[Flow]:
        """A process that publishes the folder and serves the clock, at the present time."""
        with Flow(store_url=self.url) as flow:
            flow.clock.now = self.now
            DocumentPublisher(str(self.folder)).publish(flow.engine)
            yield flow

    def move(self, flow: Flow, minutes: int) -> None:
        self.now += minutes * MINUTE
        self.latest = max(self.latest, self.now)
        flow.clock.now = self.now

    def expected(self, name: str) -> list[int]:
        """The ticks of a document after the first moment, up to the latest one."""
        last = datetime.fromtimestamp(self.latest / 1000, UTC).replace(tzinfo=None)
        if self.times[name] == EVERY:
            period = 15 * MINUTE
            begin = milliseconds(self.first) // period + 1
            return [n * period for n in range(begin, self.latest // period + 1)]
        after = self.first + timedelta(minutes=1)
        return [
            milliseconds(each) for each in ticks_of_cron(self.times[name], self.zone, after, last)
        ]

    def told(self, flow: Flow, name: str) -> list[TickRecord]:
        return flow.engine.schedules.ticks(name, most=1000)[::-1]

    def check_runs(self, flow: Flow) -> None:
        """Each run is that of its tick, has its local time, and was not started before it."""
        flow.settle()
        runs = {run.id: run for run in flow.engine.list(limit=1000)}
        rows = [row for name in self.times for row in self.told(flow, name) if row.run_id]
        assert sorted(runs) == sorted(str(row.run_id) for row in rows)
        for row in rows:
            run = flow.engine.get(str(row.run_id))
            assert run.key == tick_key(row.schedule, row.nominal)
            assert row.created >= row.nominal
            moment = datetime.fromtimestamp(row.nominal / 1000, ZoneInfo(self.zone))
            assert run.outputs == {"result": moment.isoformat()}


@pytest.fixture(autouse=True)
def _facet() -> Iterator[None]:
    with empty_registry():

        @event_facet(name="clock.note_time")
        def note_time(at: str) -> str:
            return at

        yield


@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_minute_by_minute_over_a_change_each_tick_starts_one_run_at_its_time(
    database_url: str, tmp_path: Path, zone: str, change: datetime
) -> None:
    world = World(database_url, tmp_path / "workflows", zone, change - timedelta(minutes=100))
    for n, times in enumerate(TIMES):
        world.write(f"w{n}", times, "none")
    with world.process() as flow:
        for _ in range(200):
            world.move(flow, 1)
            serve_clock(flow.engine)
        for name in world.times:
            rows = world.told(flow, name)
            assert [row.nominal for row in rows] == world.expected(name), world.times[name]
            assert all(row.outcome == "started" and row.created == row.nominal for row in rows)
        world.check_runs(flow)


@pytest.mark.parametrize(("zone", "change", "seed"), GAMES)
def test_jumps_of_the_clock_and_deaths_over_a_change_neither_lose_a_tick_nor_double_one(
    database_url: str, tmp_path: Path, zone: str, change: datetime, seed: int
) -> None:
    random = Random(f"{seed} {zone} {change}")
    world = World(database_url, tmp_path / "workflows", zone, change - timedelta(hours=4))
    for n, times in enumerate(TIMES):
        world.write(f"all-{n}", times, "all")
    world.write("none", EVERY, "none")
    world.write("last", EVERY, "last")
    end = milliseconds(change + timedelta(hours=4))
    while world.now < end:
        with world.process() as flow:
            for _ in range(random.randrange(1, 6)):
                world.move(flow, random.choice([-45, -1, 0, 1, 7, 40, 90, 150]))
                if random.random() < 0.3:
                    _die(flow, random.choice(["before", "after"]))
                    break  # the next process goes on
                serve_clock(flow.engine)
    with world.process() as flow:
        world.move(flow, (world.latest - world.now) // MINUTE)
        serve_clock(flow.engine)
        for name in world.times:
            rows, expected = world.told(flow, name), world.expected(name)
            _each_once(rows, expected)
            outcomes = Counter(row.outcome for row in rows)
            if name.startswith("all"):
                assert outcomes == {"started": len(expected)}
        world.check_runs(flow)


def _die(flow: Flow, when: str) -> None:
    """Serve the clock in a process that dies before or after the commit of the first due tick."""

    class Killed(BaseException):
        pass

    def dies(*_: object) -> bool:
        raise Killed

    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(*((ScheduleRows, "move") if when == "before" else (TickRuns, "finish")), dies)
        dying.setattr(DueSchedules, "_postpone", dies)
        with suppress(Killed):
            serve_clock(flow.engine)


def _each_once(rows: list[TickRecord], expected: list[int]) -> None:
    """Every expected tick is told by one row, and the rows in the order of their ticks."""
    covered: list[int] = []
    for row in rows:
        last = row.nominal if row.last is None else row.last
        own = [each for each in expected if row.nominal <= each <= last]
        assert len(own) == (row.tick_count or 1), row
        covered += own
    assert covered == expected
