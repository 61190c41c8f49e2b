"""Checks inside a process of the example project; called by name: `python -m … joined`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402 - after the setup
from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import Client  # noqa: E402
from shop.models import Order  # noqa: E402
from shop.workflows import fulfil  # noqa: E402

from flowengine import default_engine  # noqa: E402
from flowengine.contrib.django.models import Run  # noqa: E402
from flowengine.errors import FlowengineError  # noqa: E402
from flowengine.store.tables import metadata  # noqa: E402


def order() -> int:
    return int(Order.objects.create(customer="ada@example.org", cents=7).pk)


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (FlowengineError, TypeError) as problem:
        return str(problem)
    raise AssertionError("it was not refused")


def columns() -> None:
    """The model has columns of the table, with their lengths and types."""
    table = metadata.tables[Run._meta.db_table].columns
    kinds = {"CharField": "VARCHAR", "TextField": "TEXT", "BigIntegerField": "BIGINT"}

    def length(column: Any) -> int | None:
        return getattr(column.type, "length", None)

    of_model = {
        field.column: (kinds[field.get_internal_type()], field.max_length, field.null)
        for field in Run._meta.fields
    }
    of_table = {
        column.name: (str(column.type).partition("(")[0], length(column), column.nullable)
        for column in table
        if column.name in of_model
    }
    assert of_model == of_table, (of_model, of_table)


def joined() -> None:
    """A run in the project's own database is part of the transaction."""
    with transaction.atomic():
        run = fulfil.start(order())
        assert Run.objects.filter(pk=run.id).exists(), "in the same transaction"
    assert run.result(timeout=60).startswith("mail to ada@example.org")
    try:
        with transaction.atomic():
            never = fulfil.start(order())
            raise KeyError
    except KeyError:
        assert not Run.objects.filter(pk=never.id).exists()
    with transaction.atomic():
        kept = fulfil.start(order())
        try:
            with transaction.atomic():
                inner = fulfil.start(order())
                raise KeyError
        except KeyError:
            assert not Run.objects.filter(pk=inner.id).exists(), "the savepoint is rolled back"
        both = fulfil.start_many([{"order_id": order()}, {"order_id": order()}])
    for run in (kept, *both):
        assert run.result(timeout=60)
    with transaction.atomic():
        keyed = [fulfil.options(key="one", connection=connection).start(order()) for _ in "ab"]
    assert keyed[0].id == keyed[1].id
    assert "in no transaction" in refusal(lambda: fulfil.options(connection=connection).start(1))
    foreign = fulfil.options(connection=object())
    assert "neither a connection of Django" in refusal(lambda: foreign.start(1))
    assert fulfil.start(order()).result(timeout=60), "and without a transaction"


def deferred() -> None:
    """A run in another database is started after the commit."""
    with transaction.atomic():
        run = fulfil.start(order())
        assert "a key cannot be used" in refusal(lambda: fulfil.options(key="k").start(1))
        assert run.id in refusal(lambda: default_engine().get(run.id)), "not before the commit"
    assert run.result(timeout=60).startswith("mail to ada@example.org")
    try:
        with transaction.atomic():
            never = fulfil.start(order())
            raise KeyError
    except KeyError:
        assert never.id not in {info.id for info in default_engine().list()}


def admin() -> None:
    """Runs are read-only in the admin, and link to their page."""
    run = fulfil.start(order())
    run.result(timeout=60)
    User.objects.create_superuser("root", password="secret")
    client = Client(raise_request_exception=False)
    assert client.get("/admin/flowengine/run/").status_code == 302, "a login is asked"
    client.login(username="root", password="secret")
    for query in ("", f"?q={run.id[:6]}", f"?q={run.id}", "?state=COMPLETED"):
        page = client.get(f"/admin/flowengine/run/{query}").content.decode()
        assert f"http://localhost:5555/workflows/{run.id}" in page, query
    for query in ("?state=RUNNING", "?q=ffffffffffff"):
        assert run.id not in client.get(f"/admin/flowengine/run/{query}").content.decode(), query
    assert client.get(f"/admin/flowengine/run/{run.id}/change/").status_code == 200
    assert client.get("/admin/flowengine/run/add/").status_code == 403
    assert client.post(f"/admin/flowengine/run/{run.id}/delete/").status_code == 403
    row = Run.objects.get(pk=run.id)
    for write in (row.save, row.delete):
        assert "read-only" in refusal(write)
    call_command("makemigrations", "--check", "--dry-run")
    call_command("flowengine", "list")


if __name__ == "__main__":
    checks = {"columns": columns, "joined": joined, "deferred": deferred, "admin": admin}
    checks[sys.argv[1]]()
    print("all held")
