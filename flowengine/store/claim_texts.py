"""The SQL of claims that PostgreSQL and SQLite share.

Several tasks are claimed together only if the first is of a quick facet, and then only tasks of
quick facets: a task behind a slow one in the same batch would wait for it. A task that has lost a
worker, or must not run twice, is claimed alone.
"""

from __future__ import annotations

from flowengine.store.records import TASK_COLUMNS

IS_DUE = (
    "state = 'pending' AND task_list_name = %(task_list)s AND due <= {now} "
    "AND (name {in_names} OR short_name {in_short_names})"
)
IS_QUICK = "(name {in_quick} AND losses = 0 AND NOT runs_once)"
IS_CLAIMABLE = (
    "(%(any)s OR t.name {in_names} OR t.short_name {in_short_names}) "
    "AND (%(alone)s OR (t.losses = 0 AND NOT t.runs_once))"
)
_RETURNED = ", ".join(f"flowengine_task.{name}" for name in TASK_COLUMNS)
_CLAIM = (
    "UPDATE flowengine_task SET state = 'running', lease = flowengine_task.lease + 1, "
    "server_id = %(server)s, boot_id = %(boot)s, pid = %(process)s, "
    "started = {now}, activity = {now}, updated = {now} "
    "FROM chosen WHERE flowengine_task.uuid = chosen.uuid "
    f"RETURNING {_RETURNED}, "
)
_PARAMS = ", (SELECT s.params FROM flowengine_step s WHERE s.id = flowengine_task.step_id)"


def claim(chosen: str, member: str, *, skipped: str = "0", count: str = "0") -> str:
    """Build the statement that claims the tasks of the CTE `chosen`.

    `member` tests a name against a list. The statement returns the columns of each task, how many
    tasks were locked and `skipped`, the `count` of due tasks, and the parameters of the step. It
    is a format string with {now} for the time.
    """
    lists = {f"in_{name}": member.format(name) for name in ("names", "short_names", "quick")}
    text = f"{chosen}{_CLAIM}{skipped}, {count}{_PARAMS}"
    for name, test in lists.items():
        text = text.replace(f"{{{name}}}", test)
    return text


def park_waiting(limit: int, lock: str = "") -> str:
    """Build the statement that postpones the due tasks of one circuit breaker."""
    return f"""
WITH waiting AS (
    SELECT uuid FROM flowengine_task
    WHERE state = 'pending' AND task_list_name = %(task_list)s AND due <= %(now)s
        AND limit_key = %(key)s
    ORDER BY rank, due, position LIMIT {limit}{lock}
) UPDATE flowengine_task
SET lease = lease + 1, due = %(due)s, published = NULL, updated = %(now)s
WHERE uuid IN (SELECT uuid FROM waiting) AND state = 'pending' RETURNING uuid"""
