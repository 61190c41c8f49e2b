"""Copy the rows of a run into a new one, inside the database.

Large values are not copied: both runs refer to the same payload.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from flowengine.evaluator.records import id_within
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part
from flowengine.store.records import STEP_COLUMNS

_PORTION = 5_000  # rows that one statement copies
_SOURCES = "SELECT id, key, generation FROM flowengine_step WHERE run_id = %s AND NOT superseded"
_OWN = {"id": "{PAIR_KEY}", "run_id": "%s"}
# Each pair is the id of a step and that of its copy.
_COPY = (
    f"INSERT INTO flowengine_step ({', '.join(STEP_COLUMNS)}, superseded) "
    f"SELECT {', '.join(_OWN.get(name, f's.{name}') for name in STEP_COLUMNS)}, s.superseded "
    "FROM {PAIRS} {JOIN} flowengine_step s ON s.id = {PAIR_RUN} "
    "WHERE s.object_type <> 'Mailbox' RETURNING id"
)
_DROP = "DELETE FROM flowengine_step WHERE run_id = %s AND superseded RETURNING id"
_NOTE = "UPDATE flowengine_run SET forked_from = %s WHERE id = %s RETURNING id"
_REFER = (
    "INSERT INTO flowengine_reference (run_id, hash) "
    "SELECT %s, hash FROM flowengine_reference f WHERE run_id = %s AND NOT EXISTS "
    "(SELECT 1 FROM flowengine_reference o WHERE o.run_id = %s AND o.hash = f.hash) RETURNING hash"
)


class Forks(Part):
    """Copies runs."""

    def copy_steps(self, source: str, fork: str) -> int:
        """Copy the steps of a run, with ids of the new one; return their number."""
        rows = self._session.rows(_SOURCES, (source,))
        pairs = [
            {"run_id": step_id, "key": id_within(fork, key, generation)}
            for step_id, key, generation in rows
        ]
        text = in_dialect(_COPY, self._session.dialect)
        for at in range(0, len(pairs), _PORTION):
            self._session.rows(text, (fork, json.dumps(pairs[at : at + _PORTION])))
        return len(pairs)

    def finish(self, source: str, fork: str) -> Sequence[str]:
        """Record the origin of a new run; remove the copies that it has superseded at once."""
        self._session.rows(_NOTE, (source, fork))
        self._session.rows(_REFER, (fork, source, fork))
        return [row[0] for row in self._session.rows(_DROP, (fork,))]
