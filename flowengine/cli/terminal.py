"""The terminal: the one place where text of runs becomes output.

Errors, names and outputs are written by others. They are neither parsed as rich's markup nor let
through with control characters. The other modules of this package build what they print with
`line` and `lines`; the console escapes whatever comes another way.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from flowengine.cli.streams import MAX_LINE
from flowengine.printable import printable

Part = str | tuple[str, str]  #: a text, or a text with its style

_UNWRAPPED = 100_000  #: columns of an output that no terminal shows


class SafeConsole(Console):
    """Writes no escape sequences but those of its own styles; wraps lines only on a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, quiet=quiet)
        if not self.is_terminal:
            self.width = _UNWRAPPED

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, lines=True), segment.style)


console = SafeConsole()


def line(*parts: Part, limit: int | None = None) -> Text:
    """Return a text on one line; `limit` is that of each part."""
    shown = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        shown.append(printable(text, limit=limit), style=style)
    return shown


def lines(text: str, style: str = "", *, indent: int = 0) -> Text:
    """Return a text of several lines, like a traceback; indented, none looks like ours."""
    shown = textwrap.indent(printable(text, lines=True, limit=MAX_LINE), " " * indent)
    return Text(shown, style=style)


def print_line(text: Text) -> None:
    """Print what `line` has made; for another program without rich, which takes much longer."""
    if console.is_terminal:
        console.print(text, soft_wrap=True)
    else:
        click.echo(text.plain)


def table_of(columns: Iterable[str], rows: Iterable[Iterable[Text]]) -> Table:
    """Return a table as the lists of commands have it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    return table


def print_table(table: Table) -> None:
    """Print a table; for another program one line for each row, without blanks at its end."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    rows = captured.get().rstrip("\n").split("\n")
    click.echo("\n".join(row.rstrip() for row in rows))
