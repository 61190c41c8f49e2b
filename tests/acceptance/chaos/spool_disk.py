"""A small disk of its own for the spool directory, which can be filled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

#: The variable that allows a chaos run in which the disk never fills up.
WITHOUT_MOUNT = "FLOWENGINE_CHAOS_WITHOUT_MOUNT"


class CannotMount(Exception):
    """Without the disk a fault of the chaos run would do nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the disk for the fault 'spool disk full' cannot be mounted: {reason}; run the test "
            f"as root, or set {WITHOUT_MOUNT}=1 to run it without this fault"
        )


class SpoolDisk:
    """A tmpfs of some megabytes. Only root may mount one."""

    SIZE = "4m"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ballast = directory / "ballast"
        directory.mkdir(parents=True)
        problem = self._mount()
        self.is_mounted = problem is None
        if problem is not None and not os.environ.get(WITHOUT_MOUNT):
            raise CannotMount(problem)

    def _mount(self) -> str | None:
        """Mount it; return why that is impossible."""
        options = f"size={self.SIZE},mode=0777"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.directory)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as problem:
            return str(problem)
        return None if done.returncode == 0 else done.stderr.strip() or f"code {done.returncode}"

    def fill(self) -> None:
        if not self.is_mounted:
            return
        block = bytes(4096)
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(block)
            except OSError:  # no space left on device
                return

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", self.directory], check=True)
