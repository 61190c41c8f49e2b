"""How long this process has lately worked for each tenant, so that it serves others first.

A claim takes the tasks of one tenant. To take turns by the number of claims would not be fair: the
tasks of one tenant may take a thousand times as long as those of another. So a process counts
seconds, and serves the tenant with the most of them last. The seconds lose half their weight every
ten seconds: a tenant is not punished for the work of an hour ago.

Every fourth claim is made by turns all the same: a tenant may come late in the order of names
behind the heaviest one, and the tenants before it would be served until they outweigh that one.

Each process counts for itself. Processes that serve the same list see the same tenants, so their
counts agree well enough, and nothing is shared between them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_HALF_LIFE = 10.0  # seconds
_FORGOTTEN = 0.001  # seconds of work below which a tenant is removed
_TURNS = 4  # claims of which one goes to the tenant behind the one that was served last


class TenantUsage:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._counted = clock, clock()
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._claims, self._last = 0, ""

    def count(self, tenant: str, seconds: float) -> None:
        """Count time that this process has worked for a tenant."""
        with self._lock:
            now = self._clock()
            weight = 0.5 ** ((now - self._counted) / _HALF_LIFE)
            self._counted = now
            self._seconds = {
                name: left
                for name, spent in self._seconds.items()
                if (left := spent * weight) > _FORGOTTEN
            }
            self._seconds[tenant] = self._seconds.get(tenant, 0.0) + seconds
            self._last = tenant

    def last_to_serve(self) -> str:
        """Return the tenant behind which the next claim looks for tasks, in the order of names."""
        self._claims += 1
        return self.heaviest if self._claims % _TURNS else self._last

    @property
    def heaviest(self) -> str:
        """The tenant that this process has worked for longest; empty if it has for none."""
        with self._lock:
            return max(self._seconds, key=self._seconds.__getitem__, default="")
