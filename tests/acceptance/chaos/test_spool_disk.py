"""The disk of the chaos run is full when it is filled, and never silently absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.chaos.spool_disk import WITHOUT_MOUNT, CannotMount, SpoolDisk


@pytest.fixture(params=["refused", "absent"])
def no_mount(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose `mount` is refused, or which has none."""
    (tmp_path / "programs").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.delenv(WITHOUT_MOUNT, raising=False)
    if request.param == "refused":
        program = tmp_path / "programs" / "mount"
        program.write_text("#!/bin/sh\necho 'mount: permission denied' >&2\nexit 32\n")
        program.chmod(0o700)


@pytest.mark.usefixtures("no_mount")
def test_a_disk_that_cannot_be_mounted_fails_the_run_and_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(CannotMount, match=r"(denied|No such file).*; run .* set FLOWENGINE_CHAOS_"):
        SpoolDisk(tmp_path / "spool")


@pytest.mark.usefixtures("no_mount")
def test_a_run_without_the_disk_is_allowed_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WITHOUT_MOUNT, "1")
    disk = SpoolDisk(tmp_path / "spool")
    disk.fill()
    disk.free()
    disk.close()
    assert list(disk.directory.iterdir()) == []


def test_a_filled_disk_has_no_room_until_it_is_freed(tmp_path: Path) -> None:
    try:
        disk = SpoolDisk(tmp_path / "spool")
    except CannotMount as problem:
        pytest.skip(str(problem))
    try:
        if not disk.is_mounted:
            pytest.skip(f"{WITHOUT_MOUNT} is set")
        disk.fill()
        with pytest.raises(OSError, match="No space left on device"):
            (disk.directory / "report").write_bytes(bytes(4096))
        disk.free()
        (disk.directory / "report").write_bytes(bytes(4096))
    finally:
        disk.close()
