"""Settings are read from the environment, and wrong ones are refused before anything starts."""

from __future__ import annotations

import dataclasses

import pytest

from flowengine.errors import InvalidSetting
from flowengine.settings import Settings

NUMBERS = [
    setting.name
    for setting in dataclasses.fields(Settings)
    if isinstance(setting.default, int | float) and not isinstance(setting.default, bool)
]


def read(name: str, value: str) -> Settings:
    return Settings.from_environment({f"FLOWENGINE_{name.upper()}": value})


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_has_a_range(name: str) -> None:
    for value in ("-1", "nan", "inf", "many"):
        with pytest.raises(InvalidSetting, match=f"FLOWENGINE_{name.upper()}"):
            read(name, value)
    assert getattr(read(name, "1"), name) == 1


@pytest.mark.parametrize("name", ["concurrency", "batch", "watchdog_interval", "max_run_steps"])
def test_nothing_runs_with_zero_of_it(name: str) -> None:
    with pytest.raises(InvalidSetting, match=f"FLOWENGINE_{name.upper()}='0.*greater than 0"):
        read(name, "0")


def test_zero_switches_a_mechanism_off() -> None:
    assert read("lock_heartbeat_interval", "0").lock_heartbeat_interval == 0
    assert read("flower_steps", "0").flower_steps == 0


@pytest.mark.parametrize("value", ["", " "])
@pytest.mark.parametrize(
    "name",
    [
        *("message_keys", "link_keys", "secret_keys", "webhook_keys", "mcp_token"),
        *("tenant", "tenant_tokens", "payload_codec", "payload_keys"),
    ],
)
def test_an_empty_variable_turns_no_protection_off(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"FLOWENGINE_{name.upper()}.*remove the variable"):
        read(name, value)
    assert not getattr(Settings.from_environment({}), name)
