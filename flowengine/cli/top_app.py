"""`flowengine top`: workflows, workers, recent runs and the log of one, on a terminal.

The only module that imports textual (extra `tui`). The database is read in a thread, so that a slow
one does not stop the keys; while it is away the last state stays on the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Input, RichLog, Static
from textual.worker import get_current_worker

from flowengine.cli.failures import describe
from flowengine.cli.run_log import RunLog
from flowengine.cli.run_view import RUN_COLOURS
from flowengine.cli.terminal import line
from flowengine.cli.top_view import (
    Overview,
    OverviewReader,
    run_cells,
    worker_cells,
    workflow_cells,
)
from flowengine.engine import Engine
from flowengine.evaluator.states import RunState

_PAUSE = 1.0  #: seconds between two reads
_MAX_LINES = 2_000  #: of the log
_MAX_CELL = 300
_STATES = (RunState.RUNNING, RunState.HELD, RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)
_COLUMNS = {
    "workflows": ("workflow", "open", "done", "failed", "next", "last"),  # the last one may be cut
    "workers": ("worker", "tasks", "runs", "beat", "lists"),
    "runs": ("run", "workflow", "state", "age", "took", "waits for / error"),
}
_STYLE = """
Screen { layout: vertical; }
#title { height: 1; padding: 0 1; background: $primary; color: $text; }
#above { height: 30%; min-height: 5; }
#workflows { width: 3fr; height: 100%; }
#workers { width: 2fr; height: 100%; }
#runs { height: 1fr; min-height: 5; }
#log { height: 30%; min-height: 4; padding: 0 1; }
DataTable { overflow-x: hidden; }
DataTable, RichLog { border: round $surface-lighten-2; border-title-color: $text-muted;
    background: $background; scrollbar-size: 1 1; }
DataTable:focus, RichLog:focus { border: round $accent; border-title-color: $accent; }
#filter { display: none; height: 1; border: none; padding: 0 1; }
#filter.asked { display: block; }
"""


class TopApp(App[None]):
    """The screen, and the keys with which it is looked through."""

    CSS = _STYLE
    TITLE = "flowengine top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("q", "quit", "Quit"),
        # Before the tables: keys that arrive with it, as over a slow line, belong to the filter.
        Binding("slash", "ask", "Filter", key_display="/", priority=True),
        Binding("enter", "choose", "Runs of the workflow", show=False),
        Binding("escape", "show_all", "All runs"),
        Binding("tab", "app.focus_next", "Next table", priority=True),
    ]

    def __init__(self, engine: Engine, *, pause: float = _PAUSE) -> None:
        super().__init__()
        self._engine, self._pause = engine, pause
        self._reader = OverviewReader(engine)
        self._part = self._workflow = ""  #: of the filter, and the workflow that was chosen
        self._run_log: RunLog | None = None
        self._keys: dict[str, list[str]] = {}  #: of the rows of each table

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Horizontal(id="above"):
            yield _table("workflows")
            yield _table("workers")
        yield _table("runs")
        log = RichLog(id="log", max_lines=_MAX_LINES, wrap=True)
        log.border_title = "log"
        yield log
        yield Input(id="filter", placeholder="a part of the name of a workflow")
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in _COLUMNS.items():
            self._table(name).add_columns(*columns)
        self._table("runs").focus()
        self.set_interval(self._pause, self.look)
        self.look()

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)

    # --- reading ---

    def look(self) -> None:
        """Read the database in a thread; a read that takes longer than the pause goes on."""
        if not any(worker.group == "look" and worker.is_running for worker in self.workers):
            self.run_worker(self._look, group="look", thread=True)

    def _look(self) -> None:
        log, part, workflow = self._run_log, self._part, self._workflow
        try:
            overview = self._reader.read(part, workflow)
            lines = log.new_lines() if log is not None else []
        except Exception as problem:
            if not get_current_worker().is_cancelled:
                self.call_from_thread(self._show_problem, describe(problem))
            return
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self.show, overview, log, lines)

    # --- showing ---

    @property
    def _has_screen(self) -> bool:
        """Whether there is something to show on.

        A read may end, and the message of a widget may arrive, after the screen was taken down.
        """
        return bool(self.screen_stack) and all(map(self.query, ("#title", "#runs", "RichLog")))

    def show(self, overview: Overview, log: RunLog | None, lines: Sequence[Text]) -> None:
        if not self._has_screen:
            return
        now = overview.now
        self._show_title(overview)
        workflows = ((row.name, _cells(workflow_cells(row, now))) for row in overview.workflows)
        workers = ((info.id, _cells(worker_cells(info, now))) for info in overview.workers)
        runs = (
            (run.id, _cells(run_cells(run, now), {2: RUN_COLOURS.get(run.state, "")}))
            for run in overview.runs
        )
        self._fill("workflows", workflows)
        self._fill("workers", workers)
        self._fill("runs", runs)
        about = f" with {self._part!r}" if self._part else ""
        about = f" of {self._workflow}" if self._workflow else about
        # A Text: a str would be parsed as markup.
        self._table("runs").border_title = line(f"runs{about}", limit=_MAX_CELL)
        if log is self._run_log:
            for each in lines:
                self.query_one(RichLog).write(each)
        self._follow()

    def _show_title(self, overview: Overview) -> None:
        states = overview.states
        counts = [f"{states[state]} {state.lower()}" for state in _STATES if states[state]]
        parts = [self.TITLE, *(counts or ["no runs"]), self._engine.database.name]
        self.query_one("#title", Static).update(line("  ·  ".join(parts)))

    def _show_problem(self, problem: str) -> None:
        if not self._has_screen:
            return
        self.query_one("#title", Static).update(line((problem, "bold red")))

    def _fill(self, name: str, rows: Iterable[tuple[str, list[Text]]]) -> None:
        """Show rows; the cursor stays on its row while others come and go."""
        table, found = self._table(name), list(rows)
        keys = [key for key, _ in found]
        if keys == self._keys.get(name):
            for at, (_, cells) in enumerate(found):
                for column, cell in enumerate(cells):
                    if table.get_cell_at((at, column)) != cell:  # type: ignore[arg-type]
                        table.update_cell_at((at, column), cell, update_width=True)  # type: ignore[arg-type]
            return
        chosen, top = self._chosen(name), table.scroll_y
        self._keys[name] = keys
        table.clear()
        for key, cells in found:
            table.add_row(*cells, key=key)
        if chosen in keys:
            table.move_cursor(row=keys.index(chosen), animate=False, scroll=False)
            table.scroll_to(y=top, animate=False)

    def _chosen(self, name: str) -> str:
        """Return the key of the row at the cursor; nothing in an empty table."""
        keys, at = self._keys.get(name, []), self._table(name).cursor_row
        return keys[at] if 0 <= at < len(keys) else ""

    def _follow(self) -> None:
        """Show the log of the run at the cursor."""
        run_id = self._chosen("runs")
        if run_id == (self._run_log.run_id if self._run_log else ""):
            return
        log = self.query_one(RichLog)
        log.clear()
        log.border_title = f"log of {run_id[:8]}" if run_id else "log"
        self._run_log = RunLog(self._engine, run_id) if run_id else None
        if run_id:
            self.look()

    # --- keys ---

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table.id == "runs" and self._has_screen:
            self._follow()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "workflows" and self._has_screen:
            self._workflow = self._chosen("workflows")
            self.look()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "ask" or self.focused is None or self.focused.id != "filter"

    def action_ask(self) -> None:
        asked = self.query_one("#filter", Input)
        asked.add_class("asked")
        self.screen.set_focus(asked)  # at once; `focus` would do it after the keys that wait

    def on_input_changed(self, event: Input.Changed) -> None:
        self._part, self._workflow = event.value.strip(), ""
        self.look()

    def on_input_submitted(self) -> None:
        if self._has_screen:
            self._close_filter()

    def action_show_all(self) -> None:
        self._workflow = ""
        self.query_one("#filter", Input).value = ""
        self._close_filter()
        self.look()

    def _close_filter(self) -> None:
        asked = self.query_one("#filter", Input)
        asked.set_class(bool(asked.value), "asked")
        self._table("runs").focus()


def _table(name: str) -> DataTable[Text]:
    table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=False)
    table.border_title = name
    return table


def _cells(texts: Sequence[str], styles: dict[int, str] | None = None) -> list[Text]:
    chosen = styles or {}
    return [line((text, chosen.get(at, "")), limit=_MAX_CELL) for at, text in enumerate(texts)]
