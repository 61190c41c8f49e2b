"""A small disk of its own for the spool directory, which can be filled."""

from __future__ import annotations

import subprocess
from pathlib import Path


class SpoolDisk:
    """A tmpfs of some megabytes. Only root may mount one; elsewhere nothing is filled."""

    SIZE = "4m"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ballast = directory / "ballast"
        directory.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self.SIZE},mode=0777", "tmpfs", directory]
        self.is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
        if not self.is_mounted:
            print("the spool disk cannot be mounted: the fault 'spool disk full' does nothing")

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
