"""`flowengine limits` and `flowengine rates`: their list, one key, and the answers to changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from flowengine.cli.database import acting_engine, open_engine
from flowengine.cli.streams import json_of
from flowengine.cli.terminal import console, line, print_table, table_of
from flowengine.engine.limit_keys import LimitInfo
from flowengine.engine.presentation import clock
from flowengine.engine.results import duration
from flowengine.shown_paths import shown_path
from flowengine.store.limit_keys import Holder

_MAX_CELL = 200


def show_list(name: str, options: Mapping[str, Any], *, as_json: bool) -> None:
    with open_engine() as engine:
        page = getattr(engine, name).list(**options)
        now = engine.database.now()
    if as_json:
        click.echo(json_of([_json(info) for info in page]))
        if page.cursor:
            click.echo(f"--cursor {page.cursor} continues the list", err=True)
        return
    if page:
        _print(page, now)
    else:
        console.print(line(f"no {name}: a key is listed when a task has had it"))
    if page.cursor and console.is_terminal:
        console.print(line((f"… more with --cursor {page.cursor}", "dim")))


def show(name: str, key: str, *, as_json: bool) -> None:
    with open_engine() as engine:
        info = getattr(engine, name).get(key)
        now = engine.database.now()
    if as_json:
        holders = [holder._asdict() for holder in info.holders]
        click.echo(json_of({**asdict(info), "holders": holders}))
        return
    _print([info], now)
    if info.set_reason:
        console.print(line(("reason  ", "dim"), info.set_reason), soft_wrap=True)
    if not info.holders:
        console.print(line("no task holds it"))
        return
    rows = ([line(text, limit=_MAX_CELL) for text in _holder(each, now)] for each in info.holders)
    print_table(table_of(("run", "step", "state", "since", "server"), rows))


def set_number(
    name: str, key: str, number: int, given: Mapping[str, Any], *, as_json: bool
) -> None:
    _change(name, lambda keys: keys.set(key, number, **given), as_json)


def reset(name: str, key: str, given: Mapping[str, Any], *, as_json: bool) -> None:
    _change(name, lambda keys: keys.reset(key, **given), as_json)


def _change(name: str, change: Callable[[Any], LimitInfo], as_json: bool) -> None:
    with acting_engine() as engine:
        info = change(getattr(engine, name))
        now = engine.database.now()
    if as_json:
        click.echo(json_of(_json(info)))
    else:
        _print([info], now)


def _json(info: LimitInfo) -> dict[str, Any]:
    return {name: value for name, value in asdict(info).items() if name != "holders"}


def _print(found: Sequence[LimitInfo], now: int) -> None:
    columns = ("key", "admits", "used", "waiting", "next free", "code", "set by")
    rows = ([line(text, limit=_MAX_CELL) for text in _cells(each, now)] for each in found)
    print_table(table_of(columns, rows))


def _cells(info: LimitInfo, now: int) -> tuple[str, ...]:
    written = clock(now)
    is_set = info.set_at is not None
    return (
        info.key,
        _number(info.number, info.per),
        str(info.used),
        str(info.waiting),
        "" if info.next_free is None else f"in {duration(max(0, info.next_free - now))}",
        _number(info.code_number, info.code_per) if is_set else "",
        f"{info.set_by} at {written(info.set_at)}" if info.set_at is not None else "",
    )


def _number(number: int, per: float | None) -> str:
    return str(number) if per is None else f"{number} per {per:g} s"


def _holder(holder: Holder, now: int) -> tuple[str, ...]:
    if holder.run is None:
        return "", "of a run that was purged", "", "", ""
    return (
        holder.run[:8],
        shown_path(holder.step or ""),
        holder.state or "",
        "" if holder.started is None else duration(max(0, now - holder.started)),
        holder.server or "",
    )
