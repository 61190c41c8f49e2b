"""Index profiles for their purge; let lookups of agents use keys before the first ANALYZE.

Of two indexes that cost the same PostgreSQL takes the one that was made last: see
`agent_tables.keys_made_last`.
"""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_KEYS = {
    "flowengine_agent_state_head": "project_id, agent_id",
    "flowengine_agent_inbox": "project_id, inbox_id",
    "flowengine_agent_turn": "project_id, agent_turn_id",
    "flowengine_agent_step": "project_id, step_id",
    "flowengine_turn_waiting_tools": "project_id, agent_turn_id, tool_call_id",
    "flowengine_execution_edges": "project_id, correlation_id, primitive, edge_phase",
    "flowengine_card": "project_id, card_id",
    "flowengine_box": "project_id, box_id",
    "flowengine_box_card": "project_id, box_id, position",
    "flowengine_agent_event": "project_id, agent_id, number",
}


def upgrade() -> None:
    op.drop_index("flowengine_agent_inbox_turn", "flowengine_agent_inbox")
    op.create_index(
        "flowengine_agent_inbox_turn", "flowengine_agent_inbox", ["agent_turn_id", "project_id"]
    )
    op.execute(
        "CREATE INDEX IF NOT EXISTS flowengine_card_profile ON flowengine_card "
        "(project_id, card_id) WHERE type = 'sys.profile'"
    )
    if op.get_context().dialect.name != "postgresql":
        return
    for table, columns in _KEYS.items():
        op.execute(
            f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, "
            f"ADD CONSTRAINT {table}_pkey PRIMARY KEY ({columns})"
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup to go back")
