"""Which messages wake workers for a wide group."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from flowengine.dispatch import CeleryNotifier, Group
from flowengine.dispatch.notifier import DRAIN, WORK
from flowengine.dispatch.packed_ids import unpacked
from flowengine.evaluator.records import id_within

MOST = 16


def sent(
    app: Celery, group: Group, notifier: CeleryNotifier | None = None
) -> list[tuple[str, list[Any]]]:
    """Notify of a group; return the names and arguments of the messages in its queue."""
    notifier = notifier or CeleryNotifier(app, most=MOST, control_queue="control")
    notifier.dispatch_groups("run", [group])
    found = []
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.amqp.queues[group.task_list])
        while queue.qsize():
            message = queue.get(block=False)
            found.append((message.headers["task"], message.payload[0]))
        queue.close()
    return found


@pytest.fixture
def group() -> Group:
    # The transport is shared by the whole process, so the queue has a name of its own.
    run_id = uuid.uuid4().hex
    return Group(f"wide-{uuid.uuid4().hex}", [id_within(run_id, n) for n in range(120)])


@pytest.mark.parametrize("backend", ["rpc://", "db+sqlite:///{directory}/results.db", None])
def test_without_native_chords_a_wide_group_is_one_wakeup_for_many(
    backend: str | None, group: Group, tmp_path: Path
) -> None:
    url = backend and backend.format(directory=tmp_path)
    app = Celery("wakeups", broker="memory://", backend=url, set_as_current=False)
    assert sent(app, group) == [(DRAIN, [group.task_list, MOST])]


def test_a_queue_that_the_app_does_not_have_stops_no_other_wakeup(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("wakeups", broker="memory://", set_as_current=False)
    app.conf.task_create_missing_queues = False
    app.conf.task_queues = [Queue(group.task_list)]
    notifier = CeleryNotifier(app, most=MOST, control_queue="control")
    notifier.notify({"nowhere": 1})
    assert "wake-up not sent" in caplog.text
    assert sent(app, group, notifier) == [(DRAIN, [group.task_list, MOST])]


def test_with_native_chords_a_wide_group_is_a_chord_of_three_headers(
    group: Group,
) -> None:
    app = Celery("wakeups", broker="memory://", backend="cache+memory://", set_as_current=False)
    headers = sent(app, group)
    assert [name for name, _ in headers] == [WORK] * 3
    parcels = [parcel for _, (_, parcel) in headers]
    assert [id_ for parcel in parcels for id_ in unpacked(parcel)] == group.task_ids
