"""Access to the stored schedules that this app sees."""

from __future__ import annotations

from difflib import get_close_matches

from flowengine.errors import UnknownSchedule
from flowengine.store import Session
from flowengine.store.schedules import ScheduleRecord
from flowengine.tenants import visible_tenant

_COMPARED = 1_000


class StoredSchedules:
    def __init__(self, bound: str) -> None:
        """`bound` is the tenant that the app is bound to, empty if it is bound to none."""
        self._bound = bound

    def tenant(self, asked: str | None) -> str:
        """Return the tenant whose schedules are meant; raises TenantRefused."""
        return visible_tenant(self._bound, asked) or ""

    def record(
        self, session: Session, name: str, tenant: str | None, *, lock: bool = False
    ) -> ScheduleRecord:
        """Return a schedule; raises UnknownSchedule."""
        own = self.tenant(tenant)
        record = session.schedules.get(own, name, lock=lock)
        if record is None:
            near = get_close_matches(name[:100], session.schedules.names(own, _COMPARED), 1)
            raise UnknownSchedule(name, f"; did you mean {near[0]!r}?" if near else "")
        return record
