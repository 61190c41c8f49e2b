"""The first schema."""

import re

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SCHEMA = """
CREATE TABLE flowengine_event (
    run_id VARCHAR(32) NOT NULL, id VARCHAR(32) NOT NULL, step_id VARCHAR(32) NOT NULL,
    event_type VARCHAR(255) NOT NULL, created BIGINT NOT NULL, PRIMARY KEY (run_id, id)
);
CREATE TABLE flowengine_fact (
    id VARCHAR(32) NOT NULL, run_id VARCHAR(32) NOT NULL, kind VARCHAR(32) NOT NULL,
    dedupe_key VARCHAR(255), payload TEXT, actor VARCHAR(255), reason TEXT,
    taken_in BOOLEAN NOT NULL, created BIGINT NOT NULL, PRIMARY KEY (id)
);
CREATE UNIQUE INDEX flowengine_fact_once ON flowengine_fact (run_id, dedupe_key);
CREATE INDEX flowengine_fact_waiting ON flowengine_fact (run_id) WHERE NOT taken_in;
CREATE TABLE flowengine_history (
    run_id VARCHAR(32) NOT NULL, revision INTEGER NOT NULL, at BIGINT NOT NULL,
    summary TEXT NOT NULL, PRIMARY KEY (run_id, revision)
);
CREATE TABLE flowengine_join (
    id VARCHAR(32) NOT NULL, run_id VARCHAR(32) NOT NULL, remaining INTEGER NOT NULL,
    updated BIGINT NOT NULL, PRIMARY KEY (id)
);
CREATE INDEX flowengine_join_run ON flowengine_join (run_id);
CREATE TABLE flowengine_lock (
    name VARCHAR(255) NOT NULL, owner VARCHAR(32) NOT NULL, until BIGINT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE flowengine_payload (
    hash VARCHAR(32) NOT NULL, body TEXT NOT NULL, created BIGINT NOT NULL, PRIMARY KEY (hash)
);
CREATE TABLE flowengine_program (
    hash VARCHAR(32) NOT NULL, body TEXT NOT NULL, created BIGINT NOT NULL, PRIMARY KEY (hash)
);
CREATE TABLE flowengine_run (
    id VARCHAR(32) NOT NULL, tenant VARCHAR(64) NOT NULL, workflow VARCHAR(255) NOT NULL,
    program_hash VARCHAR(32) NOT NULL, state VARCHAR(16) NOT NULL, generation INTEGER NOT NULL,
    revision INTEGER NOT NULL, priority INTEGER NOT NULL, open_steps INTEGER NOT NULL,
    task_count INTEGER NOT NULL, outputs TEXT, error TEXT, alarm TEXT, labels TEXT,
    idempotency_key VARCHAR(255), singleton_key VARCHAR(255), parent_run_id VARCHAR(32),
    parent_step_id VARCHAR(32), waiting_step_key VARCHAR(32), root_run_id VARCHAR(32),
    trace_id VARCHAR(64), deadline BIGINT, created BIGINT NOT NULL, updated BIGINT NOT NULL,
    finished BIGINT, PRIMARY KEY (id)
);
CREATE INDEX flowengine_run_alarm ON flowengine_run (id) WHERE alarm IS NOT NULL;
CREATE INDEX flowengine_run_created ON flowengine_run (tenant, created);
CREATE UNIQUE INDEX flowengine_run_idempotency
    ON flowengine_run (tenant, workflow, idempotency_key);
CREATE INDEX flowengine_run_parent ON flowengine_run (parent_run_id);
CREATE UNIQUE INDEX flowengine_run_singleton ON flowengine_run (tenant, workflow, singleton_key)
    WHERE finished IS NULL;
CREATE INDEX flowengine_run_state ON flowengine_run (state, created);
CREATE TABLE flowengine_handled (
    server_id VARCHAR(32) NOT NULL, handler VARCHAR(255) NOT NULL, handled INTEGER NOT NULL,
    not_handled INTEGER NOT NULL, PRIMARY KEY (server_id, handler)
);
CREATE TABLE flowengine_server (
    uuid VARCHAR(32) NOT NULL, boot_id VARCHAR(32) NOT NULL, server_group VARCHAR(255) NOT NULL,
    service_name VARCHAR(255) NOT NULL, server_name VARCHAR(255) NOT NULL, server_ips TEXT,
    start_time BIGINT NOT NULL, ping_time BIGINT NOT NULL, topics TEXT, handlers TEXT,
    state VARCHAR(16) NOT NULL, manager VARCHAR(255) NOT NULL, error TEXT, pid INTEGER,
    lock_file TEXT, PRIMARY KEY (uuid)
);
CREATE INDEX flowengine_server_state ON flowengine_server (state, ping_time);
CREATE TABLE flowengine_step (
    id VARCHAR(32) NOT NULL, run_id VARCHAR(32) NOT NULL, key VARCHAR(32) NOT NULL,
    generation INTEGER NOT NULL, superseded BOOLEAN NOT NULL, path TEXT NOT NULL,
    object_type VARCHAR(32) NOT NULL, address TEXT NOT NULL, facet_name VARCHAR(255) NOT NULL,
    parent VARCHAR(32), position INTEGER NOT NULL, state VARCHAR(48) NOT NULL, params TEXT,
    returns TEXT, error TEXT, waiting INTEGER NOT NULL, remaining INTEGER NOT NULL,
    item_count INTEGER NOT NULL, next_index INTEGER NOT NULL, failure TEXT, yields TEXT,
    program_hash VARCHAR(32), created BIGINT NOT NULL, updated BIGINT NOT NULL, PRIMARY KEY (id)
);
CREATE UNIQUE INDEX flowengine_step_instance ON flowengine_step (run_id, "key", generation);
CREATE TABLE flowengine_task (
    uuid VARCHAR(32) NOT NULL, run_id VARCHAR(32) NOT NULL, step_id VARCHAR(32) NOT NULL,
    step_key VARCHAR(32) NOT NULL, step_path TEXT NOT NULL, program_hash VARCHAR(32) NOT NULL,
    name VARCHAR(255) NOT NULL, short_name VARCHAR(255) NOT NULL,
    task_list_name VARCHAR(255) NOT NULL, data_type VARCHAR(64) NOT NULL,
    position INTEGER NOT NULL, try_number INTEGER NOT NULL, losses INTEGER NOT NULL,
    lease INTEGER NOT NULL, state VARCHAR(16) NOT NULL, rank INTEGER NOT NULL,
    due BIGINT NOT NULL, timeout_ms BIGINT, runs_once BOOLEAN NOT NULL, published BIGINT,
    started BIGINT, activity BIGINT, server_id VARCHAR(32), boot_id VARCHAR(32), pid INTEGER,
    limit_key VARCHAR(255), limit_slot INTEGER, join_id VARCHAR(32), outcome VARCHAR(16),
    result TEXT, error TEXT, usage TEXT, progress TEXT, taken_in BOOLEAN NOT NULL,
    created BIGINT NOT NULL, updated BIGINT NOT NULL, PRIMARY KEY (uuid)
);
CREATE INDEX flowengine_task_due ON flowengine_task (task_list_name, rank, due, position)
    WHERE state = 'pending';
CREATE UNIQUE INDEX flowengine_task_one_running_per_step ON flowengine_task (step_id)
    WHERE state = 'running';
CREATE INDEX flowengine_task_reported ON flowengine_task (run_id, join_id)
    WHERE state IN ('completed', 'failed') AND NOT taken_in;
CREATE INDEX flowengine_task_retry ON flowengine_task (due)
    WHERE state = 'pending' AND due > created AND published IS NULL;
CREATE INDEX flowengine_task_run ON flowengine_task (run_id, step_id);
CREATE INDEX flowengine_task_running ON flowengine_task (boot_id) WHERE state = 'running';
CREATE TABLE flowengine_timer (
    id VARCHAR(32) NOT NULL, run_id VARCHAR(32) NOT NULL, step_id VARCHAR(32),
    kind VARCHAR(32) NOT NULL, due BIGINT NOT NULL, fired BIGINT, created BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX flowengine_timer_due ON flowengine_timer (due) WHERE fired IS NULL;
"""
_SHORT_TEXT = re.compile(r"VARCHAR\(\d+\)")


def upgrade() -> None:
    is_postgres = op.get_context().dialect.name == "postgresql"
    # Short texts are compared byte by byte, whatever the language of the server.
    schema = _SHORT_TEXT.sub(r'\g<0> COLLATE "C"', _SCHEMA) if is_postgres else _SCHEMA
    for statement in schema.strip().rstrip(";").split(";"):
        op.execute(" ".join(statement.split()))  # as SQLite stores it
    if is_postgres:
        for table in ("flowengine_run", "flowengine_step"):
            op.execute(f"ALTER TABLE {table} SET (fillfactor = 45)")
