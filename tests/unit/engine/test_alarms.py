"""Which task lists get a wake-up, and which runs an alarm."""

from __future__ import annotations

from flowengine.engine.liveness import UNSERVED, consumes, unserved_alarm, unserved_alarms
from flowengine.store.servers import ServerDefinition


def server(*handlers: str, topics: tuple[str, ...] = ()) -> ServerDefinition:
    return ServerDefinition("1", "g", "s", "io@vm", handlers=list(handlers), topics=list(topics))


def test_only_lists_with_a_consumer_get_a_wake_up() -> None:
    consumer = server(topics=("io", "default"))
    assert [name for name in ("default", "gpu", "io") if consumes(consumer, name)] == [
        "default",
        "io",
    ]


def test_a_server_without_topics_consumes_all_lists() -> None:
    assert consumes(server(), "gpu")


def test_a_served_task_has_no_alarm() -> None:
    assert unserved_alarm([server("lab.Weigh")], "lab.Weigh", "default") is None
    assert unserved_alarm([server("Weigh")], "lab.Weigh", "default") is None, "by its short name"


def test_a_facet_without_code_is_an_alarm() -> None:
    alarm = unserved_alarm([server("other")], "lab.Weigh", "default")
    assert alarm is not None
    assert alarm.startswith(f"{UNSERVED} 'default' that has the code of event facet 'lab.Weigh'")


def test_a_list_without_a_consumer_is_an_alarm_that_names_the_capable_server() -> None:
    alarm = unserved_alarm([server("Weigh", topics=("io",))], "lab.Weigh", "gpu")
    assert alarm is not None
    assert "io@vm has the code" in alarm
    assert "consumes io; add 'gpu'" in alarm


def test_alarms_are_given_by_run() -> None:
    pending = {("run1", "a", "default"), ("run2", "b", "default")}
    assert unserved_alarms([server("a")], pending).keys() == {"run2"}
