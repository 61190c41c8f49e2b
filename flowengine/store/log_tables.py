"""The table of the logs of steps."""

from __future__ import annotations

from sqlalchemy import Index

from flowengine.store.columns import Table, id_column, text_column, time_column


class LogRow(Table):
    """Neighbouring lines of one try. Rows are added and removed, and never changed."""

    __table_args__ = (
        # By the time of their insertion: a reader that follows looks at the latest ones of a run.
        Index("flowengine_log_run", "run_id", "created"),
        Index("flowengine_log_created", "created"),
    )

    task_id: str = id_column(primary_key=True)
    lease: int = time_column(primary_key=True)  #: of the try
    first_line: int = time_column(primary_key=True)  #: the number of its first line
    run_id: str = id_column()
    line_count: int = 0
    created: int = time_column()
    body: str = text_column("")  #: the lines as JSON
