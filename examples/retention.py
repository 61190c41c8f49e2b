"""Remove ended runs: by hand, and how many a rule would remove.

    python examples/retention.py

A fleet sets FLOWENGINE_RETENTION=COMPLETED=30d,FAILED=90d instead: recovery removes the runs.
"""

from datetime import timedelta

from flowengine import default_engine, event_facet, workflow


@event_facet
def pack(item: str) -> str:
    return f"{item}, packed"


@workflow
def parcel(item: str) -> str:
    return pack(item)


if __name__ == "__main__":
    engine = default_engine()
    runs = [parcel.options(labels={"shelf": "a"}).start(item) for item in ("tea", "cup", "pot")]
    print([run.result(timeout=60) for run in runs])
    print("older than a month:", engine.purge(older_than=timedelta(days=30), dry_run=True).runs)
    print("removed:", engine.purge(older_than=timedelta(0)).runs)
    print("left:", len(engine.list(label={"shelf": "a"})))
    print("violated invariants:", engine.doctor())
