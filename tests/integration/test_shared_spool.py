"""A spool directory that several workers share: each report is delivered by one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Succeeded
from flowengine.worker.spool import Spool, spool_record
from tests.integration.engines import claim, one, opened


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


def claimed(engine: Engine) -> TaskDefinition:
    engine.start(one(), "Flow", {"x": 1})
    return claim(engine)


def logged(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if getattr(r, "action", "") == action]


def test_workers_that_share_a_spool_directory_deliver_a_report_once_without_a_warning(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    task = claimed(engine)
    spool = Spool(tmp_path / "spool")
    spool.write(spool_record(task, Succeeded({"y": 2})))
    end_try, of_another = engine.end_try, []

    def while_another_delivers(*given: Any, **options: Any) -> bool:
        of_another.append(Spool(tmp_path / "spool").deliver(engine))
        return end_try(*given, **options)

    monkeypatch.setattr(engine, "end_try", while_another_delivers)
    with caplog.at_level("INFO", "flowengine"):
        assert spool.deliver(engine) == 1
    assert of_another == [0], "the other one leaves the file to its holder"
    assert spool.waiting() == []
    assert logged(caplog, "report_refused") == []
    assert len(logged(caplog, "report_delivered")) == 1


def test_a_report_that_could_not_be_delivered_is_free_for_another_worker(
    engine: Engine, tmp_path: Path, monkeypatch: Any
) -> None:
    task = claimed(engine)
    spool = Spool(tmp_path / "spool")
    spool.write(spool_record(task, Succeeded({"y": 2})))

    def interrupted(*_given: Any, **_options: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(engine, "end_try", interrupted)
        with pytest.raises(KeyboardInterrupt):
            spool.deliver(engine)
    assert Spool(tmp_path / "spool").deliver(engine) == 1


def test_the_delivery_of_a_spooled_report_names_its_run(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = claimed(engine)
    spool = Spool(tmp_path / "spool")
    spool.write(spool_record(task, Succeeded({"y": 2})))
    with caplog.at_level("INFO", "flowengine"):
        spool.deliver(engine)
    (line,) = logged(caplog, "report_delivered")
    assert line.endswith(f" of run {task.workflow_id[:8]}: accepted")


def test_a_report_that_was_recorded_before_is_no_warning(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a commit whose answer was lost: the worker spools the report."""
    task = claimed(engine)
    assert engine.report(task, Succeeded({"y": 2}))
    spool = Spool(tmp_path / "spool")
    spool.write(spool_record(task, Succeeded({"y": 2})))
    with caplog.at_level("INFO", "flowengine"):
        assert spool.deliver(engine) == 1
    assert logged(caplog, "report_refused") == []
    assert len(logged(caplog, "report_repeated")) == 1
    (line,) = logged(caplog, "report_delivered")
    assert line.endswith(": its try had ended before")
