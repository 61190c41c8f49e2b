"""`flowengine top`, driven by textual's pilot."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from textual.coordinate import Coordinate
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog, Static
from textual.widgets.data_table import RowKey

from flowengine import event_facet, workflow
from flowengine.cli import main
from flowengine.cli.top_app import TopApp
from flowengine.cli.top_view import OverviewReader, workflow_cells
from flowengine.engine.publication_drafts import Publication
from flowengine.engine.run_logs import RunLog as PrintedLines
from flowengine.scheduling import Schedule
from flowengine.step_logs.chunks import LogChunk
from flowengine.step_logs.lines import body_of, encoded_line
from flowengine.testing import Flow

SECONDS = 60.0


@event_facet(name="top.work")
def work(n: int) -> int:
    if n == 3:
        raise ValueError("\x1b[31mno\x1b[0m [bold]more[/bold]")
    return n


@workflow(name="etl.daily")
def daily(n: int) -> int:
    return work(n)


@workflow(name="shop.order")
def order(n: int) -> int:
    return work(n)


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    with Flow(store_url=f"sqlite:///{tmp_path}/flow.db") as flow:
        yield flow


def start(flow: Flow, started: Any, n: int) -> str:
    flow.clock.advance(seconds=1)  # the newest is the first
    return flow.engine.start(started.program(), started.name, {"n": n}).id


def driven(
    flow: Flow, steps: Callable[[TopApp, Pilot[None]], Awaitable[None]], columns: int = 100
) -> None:
    """Run the app on a screen of its own, and do these steps with it."""

    async def drive() -> None:
        app = TopApp(flow.engine, pause=0.25)
        async with app.run_test(size=(columns, 30)) as pilot:
            await steps(app, pilot)

    asyncio.run(drive())


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    ends = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < ends, f"in vain waited for {what}"
        await pilot.pause(0.02)


def column(app: TopApp, name: str, at: int = 0) -> list[str]:
    table = app.query_one(f"#{name}", DataTable)
    return [str(table.get_row_at(row)[at]) for row in range(table.row_count)]


def log(app: TopApp) -> str:
    return "\n".join(strip.text for strip in app.query_one(RichLog).lines)


def title(app: TopApp) -> str:
    return str(app.query_one("#title", Static).render())


def test_workflows_workers_runs_and_a_log_are_shown_and_go_on(flow: Flow) -> None:
    flow.worker("io@vm")
    first = start(flow, daily, 1)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: column(app, "runs") == [first[:8]], "the run")
        assert column(app, "workflows") == ["etl.daily"]
        assert column(app, "workers") == ["io@vm"]
        await until(pilot, lambda: "work  begun" in log(app), "the log of the run")
        second = start(flow, order, 2)
        await until(pilot, lambda: column(app, "runs") == [second[:8], first[:8]], "the new run")
        assert app.query_one("#runs", DataTable).cursor_row == 1, "the cursor stays on its run"
        flow.settle()
        await until(pilot, lambda: "✓ daily  complete" in log(app), "the end in the log")
        assert log(app).count("work  begun") == 1, "no line is shown twice"
        assert set(column(app, "runs", 2)) == {"COMPLETED"}
        await pilot.press("up")
        await until(pilot, lambda: "✓ order  complete" in log(app), "the log of the other run")
        assert "daily" not in log(app)

    driven(flow, steps)


def test_printed_lines_are_part_of_the_log_once_and_after_an_outage(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = flow.engine.run(start(flow, daily, 1))
    task = flow.worker("io@vm").claim(run, "work")

    def write(number: int, text: str) -> None:
        line = encoded_line(flow.clock.now + number, logging.INFO, "stdout", "", text)
        about = (run.id, task.uuid, task.lease)
        flow.engine.log_store.add([LogChunk(*about, number, 1, body_of([line]))])

    def away(*_: Any, **__: Any) -> Any:
        raise OperationalError("SELECT 1", {}, Exception("the server closed the connection"))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        write(1, "first line")
        await until(pilot, lambda: "work stdout: first line" in log(app), "the first line")
        with monkeypatch.context() as patched:
            patched.setattr(PrintedLines, "page", away)
            await until(pilot, lambda: "cannot be used" in title(app), "the problem")
            write(2, "second line")
        await until(pilot, lambda: "second line" in log(app), "the second line")
        assert log(app).count("first line") == 1

    driven(flow, steps)


def test_workflows_that_are_published_are_shown_although_they_never_ran(flow: Flow) -> None:
    found = [Publication("shop.order", order.program(), "python", "shop.py:1")]
    flow.engine.catalogue.publish(found)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: column(app, "workflows") == ["shop.order"], "the workflow")

    driven(flow, steps)


def test_the_tick_of_a_paused_or_stopped_schedule_is_not_shown_as_the_next_one(flow: Flow) -> None:
    flow.clock.now = 1_700_006_400_000 - 30 * 60_000  # half an hour before midnight
    for name, every in (("soon", "10m"), ("later", "20m")):
        schedule = Schedule(every=every, inputs={"n": 1}, name=name)
        flow.engine.schedules.put(daily.program(), daily.name, schedule)

    def shown() -> str:
        overview = OverviewReader(flow.engine).read("", "")
        (row,) = overview.workflows
        return workflow_cells(row, flow.clock.now)[4]

    flow.engine.schedules.pause("soon")
    flow.clock.advance(minutes=15)  # past the tick that is kept
    flow.watchdog()
    assert shown() == "in 15 min"
    flow.engine.schedules.pause("later")
    assert shown() == "paused"
    flow.engine.schedules.resume("later")
    flow.engine.schedules.remove("soon")
    with flow.database.write() as session:
        session.execute(text("UPDATE flowengine_schedule SET definition = '[]'"))
    flow.clock.advance(minutes=15)
    flow.watchdog()
    assert shown() == "stopped"


def test_the_next_tick_is_whole_on_80_columns(flow: Flow) -> None:
    flow.clock.now = 1_700_006_400_000 - 15 * 60_000 - 7_000
    schedule = Schedule("0 0 * * *", inputs={"n": 1})
    flow.engine.schedules.put(order.program(), order.name, schedule)
    start(flow, order, 1)
    flow.clock.advance(minutes=-2)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: column(app, "workflows", 4) == ["in 17 min"], "the next tick")
        table = app.query_one("#workflows", DataTable)
        cell = table._get_cell_region(Coordinate(0, 4))
        assert cell.right <= table.scrollable_content_region.width

    driven(flow, steps, columns=80)


def test_runs_are_filtered_by_a_part_of_a_name_and_by_a_workflow(flow: Flow) -> None:
    start(flow, daily, 1)
    start(flow, order, 2)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        both = ["shop.order", "etl.daily"]
        await until(pilot, lambda: column(app, "runs", 1) == both, "both runs")
        await pilot.press("slash", *"ETL")
        await until(pilot, lambda: column(app, "runs", 1) == ["etl.daily"], "the filtered run")
        assert column(app, "workflows") == ["etl.daily"]
        await pilot.press("enter", "escape")
        await until(pilot, lambda: column(app, "runs", 1) == both, "both runs again")
        app.query_one("#workflows", DataTable).focus()
        await pilot.press("down", "enter")
        await until(pilot, lambda: column(app, "runs", 1) == ["shop.order"], "the chosen one")
        await pilot.press("q")

    driven(flow, steps)


def test_keys_that_arrive_together_with_the_one_of_the_filter_are_its_text(flow: Flow) -> None:
    start(flow, daily, 1)
    start(flow, order, 2)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(column(app, "runs")) == 2, "both runs")
        for key, character in (("slash", "/"), ("e", "e"), ("t", "t"), ("slash", "/")):
            app.post_message(Key(key, character))
        await until(pilot, lambda: app.query_one(Input).value == "et/", "the text of the filter")
        await pilot.press("backspace")
        await until(pilot, lambda: column(app, "runs", 1) == ["etl.daily"], "the filtered run")

    driven(flow, steps)


def test_messages_of_tables_may_arrive_after_the_screen_was_taken_down(flow: Flow) -> None:
    start(flow, daily, 1)
    left: list[tuple[TopApp, DataTable.RowHighlighted, DataTable.RowSelected]] = []

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: len(column(app, "runs")) == 1, "the run")
        runs, flows = (app.query_one(f"#{name}", DataTable) for name in ("runs", "workflows"))
        row = RowKey("any")
        left.append((app, runs.RowHighlighted(runs, 0, row), flows.RowSelected(flows, 0, row)))

    driven(flow, steps)
    ((app, highlighted, selected),) = left
    app.on_data_table_row_highlighted(highlighted)
    app.on_data_table_row_selected(selected)
    app.on_input_submitted()


def test_text_of_runs_is_neither_markup_nor_an_escape_sequence(flow: Flow) -> None:
    start(flow, daily, 3)
    flow.settle()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        shown = r"\x1b[31mno\x1b[0m [bold]more[/bold]"
        await until(pilot, lambda: shown in "".join(column(app, "runs", 5)), "the error")
        await until(pilot, lambda: shown in log(app), "the error in the log")

    driven(flow, steps)


def test_the_text_of_the_filter_is_no_markup(flow: Flow) -> None:
    def title(app: TopApp) -> str:
        return str(app.query_one("#runs", DataTable)._border_title)

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"[/x]")
        await until(pilot, lambda: title(app) == "runs with '[/x]'", "the filter in the title")

    driven(flow, steps)


def test_while_the_database_is_away_the_last_state_stays(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(flow, daily, 1)

    def away(*_: Any, **__: Any) -> Any:
        raise OperationalError("SELECT 1", {}, Exception("the server closed the connection"))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: column(app, "runs") == [run[:8]], "the run")
        assert "1 running" in title(app)
        with monkeypatch.context() as patched:
            patched.setattr(flow.engine, "list", away)
            await until(pilot, lambda: "cannot be used" in title(app), "the problem")
            assert column(app, "runs") == [run[:8]]
        await until(pilot, lambda: "1 running" in title(app), "the end of the outage")

    driven(flow, steps)


def test_a_read_that_ends_after_the_screen_was_taken_down_is_not_shown(flow: Flow) -> None:
    overview = OverviewReader(flow.engine).read("", "")

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await app.screen.remove_children()
        app.show(overview, None, [])
        app._show_problem("the database is away")

    driven(flow, steps)


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(__import__("sys").modules, "flowengine.cli.top_app", raising=False)
    found = builtins.__import__

    def missing(name: str, *given: Any, **more: Any) -> Any:
        if name.startswith("textual"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    ended = CliRunner().invoke(main, ["top"])
    assert ended.exit_code == 1
    assert "pip install 'flowengine[tui]'" in ended.output
