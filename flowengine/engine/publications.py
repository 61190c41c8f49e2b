"""Publications: workflows that are written to the catalogue, with the schedules of documents.

A row of the catalogue and the schedules of its document change in one transaction. The schedules
of a document are the rows whose source is `document` and whose workflow it is: the database knows
them, whichever process wrote them. Lock order: workflows by name, then schedules by tenant and
name. Two processes that publish the same names do not deadlock; a deadlock with others is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flowengine.engine.program_cache import ProgramCache
from flowengine.engine.publication_drafts import (
    DOCUMENT,
    PUSHED,
    Draft,
    Drafts,
    Folder,
    Publication,
    Published,
    broken,
    stored_name,
)
from flowengine.engine.schedule_definitions import ScheduleDefinitions
from flowengine.store import Session, Store
from flowengine.store.failures import is_deadlock, is_unavailable
from flowengine.store.schedules import ScheduleRecord

_TRIES = 5  #: of a transaction that ends with a deadlock


class _NotStored(Exception):
    """A document that the storage refuses, found in the transaction."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(what)
        self.name, self.what = name, what


class _Undo(Exception):
    """Rolls a trial back."""


class Publications:
    """Writes publications to one database."""

    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        definitions: ScheduleDefinitions,
        tenant: str,
    ) -> None:
        self._database, self._drafts = database, Drafts(programs, definitions)
        self._definitions, self.tenant = definitions, tenant

    def publish(self, found: Collection[Publication], folder: Folder | None = None) -> Published:
        """Write what differs from the database: one statement if nothing does, two of documents.

        A publication that cannot be stored is stored as broken, with its problem; the others are
        written as they are.
        """
        own = {stored_name(each.name): each for each in found}
        changes = Published()
        drafts: dict[str, Draft] = {}
        for name, each in own.items():
            if each.is_new:
                drafts[name] = self._drafts.of(name, each, changes)
        while True:
            stale = self._compare(own, drafts, folder, changes)
            # Documents that may have given a schedule to another. A broken document keeps its own.
            givers = {
                name
                for name, each in own.items()
                if each.schedules is not None
                and (name not in drafts or drafts[name].schedules is not None)
            }.union(changes.missing)
            if not (changes.written or changes.removed or stale):
                return changes
            try:
                self._write(drafts, folder, changes, givers, stale)
                return changes
            except _NotStored as problem:
                refused = problem
            except Exception as problem:
                if is_unavailable(problem):
                    raise
                refused = self._found_alone(drafts, changes.written, givers, problem)
            changes.is_repeatable = True
            # Each turn makes one draft a broken one, and those are always stored.
            told = broken(own[refused.name], refused.what, changes)
            drafts[refused.name] = self._drafts.of(refused.name, told, changes)

    # --- decisions: what a read shows ---

    def _compare(
        self,
        own: Mapping[str, Publication],
        drafts: Mapping[str, Draft],
        folder: Folder | None,
        changes: Published,
    ) -> list[ScheduleRecord]:
        """Note what differs; return schedules of documents that the catalogue does not have."""
        names = sorted(drafts)
        has_schedules = folder is not None or any(d.schedules is not None for d in drafts.values())
        source, place = (folder.source, folder.place) if folder else ("", "")
        stale: list[ScheduleRecord] = []
        with self._database.read() as session:
            # Before the catalogue: a document that is published now has its row before them.
            schedules = session.schedules.of_source(DOCUMENT) if has_schedules else []
            stored = session.catalogue.digests(names, source, place)
            others = sorted({each.workflow for each in schedules} - stored.keys() - own.keys())
            if folder is not None and others:
                sources = session.catalogue.sources(others)
                stale = [
                    each
                    for each in schedules
                    if each.workflow in others
                    and sources.get(each.workflow) not in (DOCUMENT, PUSHED)
                ]
        have: dict[str, set[tuple[str, str, str]]] = {}
        for each in schedules:
            if each.tenant == self.tenant:
                key = each.name, each.definition, each.program_hash
                have.setdefault(each.workflow, set()).add(key)
        changes.written = [
            name
            for name in names
            if stored.get(name) != drafts[name].record.digest
            or drafts[name].stored_schedules() not in (None, have.get(name, set()))
        ]
        unlisted = tuple(folder.unlisted) if folder else ()
        gone = stored.keys() - own.keys() if folder else set[str]()
        changes.missing = sorted(name for name in gone if not name.startswith(unlisted))
        changes.removed = [n for n in changes.missing if folder and n in folder.removable]
        return stale

    # --- the transaction ---

    def _write(
        self,
        drafts: Mapping[str, Draft],
        folder: Folder | None,
        changes: Published,
        givers: Collection[str],
        stale: Sequence[ScheduleRecord] = (),
        *,
        is_trial: bool = False,
    ) -> None:
        for attempt in range(_TRIES):
            try:
                with self._database.write() as session:
                    gone = self._put_rows(session, drafts, folder, changes)
                    self._put_schedules(session, drafts, changes.written, gone, givers, stale)
                    if is_trial:
                        raise _Undo
                changes.removed = sorted(gone)
                return
            except Exception as problem:
                if not is_deadlock(problem) or attempt == _TRIES - 1:
                    raise

    def _put_rows(
        self,
        session: Session,
        drafts: Mapping[str, Draft],
        folder: Folder | None,
        changes: Published,
    ) -> set[str]:
        """Write rows of the catalogue; return the names of those that were removed."""
        now, gone = session.now(), set()
        for name in sorted({*changes.written, *changes.removed}):
            if name not in changes.written:
                assert folder is not None
                if session.catalogue.remove_below(name, folder.source, folder.place):
                    gone.add(name)
                continue
            record = drafts[name].record
            if record.program_hash is not None:
                session.payloads.save_program(record.program_hash, drafts[name].text, now)
            session.catalogue.put(record._replace(created=now, updated=now))
        return gone

    def _put_schedules(
        self,
        session: Session,
        drafts: Mapping[str, Draft],
        written: Sequence[str],
        gone: Collection[str],
        givers: Collection[str],
        stale: Sequence[ScheduleRecord],
    ) -> None:
        """Make the schedules of written documents those of their text.

        Read here, under the locks of the rows: every writer of a document's schedules holds them.
        """
        told = {n: s for n in written if (s := drafts[n].schedules) is not None}
        wanted = {(self.tenant, each): n for n, own in told.items() for each in own}
        owners = sorted({*told, *gone})
        left = session.schedules.of_source(DOCUMENT, owners) if owners else []
        # Another tenant's worker has its own version of a document; a removed one is nobody's.
        old = {(e.tenant, e.name) for e in left if e.workflow in gone or e.tenant == self.tenant}
        orphans = {(each.tenant, each.name): each.workflow for each in stale}
        for tenant, name in sorted({*wanted, *old, *orphans}):
            if (tenant, name) in wanted:
                self._put_schedule(session, drafts[wanted[tenant, name]], name, givers)
            elif (tenant, name) in old:
                session.schedules.remove(tenant, name)
            else:
                held = session.schedules.get(tenant, name, lock=True)
                owner = orphans[tenant, name]
                known = session.catalogue.sources([owner]).get(owner)
                if held and held.workflow == owner and known not in (DOCUMENT, PUSHED):
                    session.schedules.remove(tenant, name)

    def _put_schedule(
        self, session: Session, draft: Draft, name: str, givers: Collection[str]
    ) -> None:
        workflow, digest = draft.record.name, draft.record.program_hash
        assert draft.schedules is not None
        assert digest is not None
        before = session.schedules.get(self.tenant, name, lock=True)
        if before and before.workflow != workflow and before.workflow not in givers:
            other = session.catalogue.get(before.workflow)
            where = f" ({other.place})" if other else ""
            what = (
                f"the schedule `{name}` is that of the workflow `{before.workflow}`{where}: give "
                f"it another `name`, or remove that one: flowengine schedules remove {name}"
            )
            raise _NotStored(workflow, what)
        try:
            self._definitions.put(
                *(session, workflow, digest, draft.schedules[name][0]),
                tenant=self.tenant,
                source=DOCUMENT,
            )
        except Exception as problem:
            if is_unavailable(problem):
                raise
            raise _NotStored(workflow, str(problem)) from problem

    def _found_alone(
        self,
        drafts: Mapping[str, Draft],
        written: Sequence[str],
        givers: Collection[str],
        problem: Exception,
    ) -> _NotStored:
        """Return the document that made a transaction fail: each is tried alone and undone."""
        for name in written:
            if drafts[name].record.program_hash is None:
                continue  # a broken one, as which it would be stored again
            try:
                self._write(drafts, None, Published([name]), givers, is_trial=True)
            except _Undo:
                continue
            except _NotStored as found:
                return found
            except Exception as found:
                if is_unavailable(found):
                    raise
                return _NotStored(name, f"it cannot be stored: {found}".partition("\n")[0])
        raise problem
