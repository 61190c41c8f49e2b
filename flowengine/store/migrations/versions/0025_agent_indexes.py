"""Let indexes of agents begin with the column that selects most.

A small index that began with `project_id` was taken in place of the primary key: see
`agent_tables.keys_made_last`.
"""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_INDEXES = {
    "flowengine_agent_turn_agent": ("agent_turn", ["agent_id", "project_id", "enqueued_at"]),
    "flowengine_agent_turn_enqueued": (
        "agent_turn",
        ["project_id", "enqueued_at", "agent_turn_id"],
    ),
    "flowengine_agent_turn_parent": ("agent_turn", ["parent_turn_id", "project_id"]),
    "flowengine_agent_step_turn": ("agent_step", ["agent_turn_id", "project_id", "number"]),
    "flowengine_execution_edges_turn": ("execution_edges", ["agent_turn_id", "project_id"]),
    "flowengine_card_turn": ("card", ["agent_turn_id", "project_id"]),
    "flowengine_agent_event_turn": ("agent_event", ["agent_turn_id", "project_id", "number"]),
}
#: Made anew behind the index that is as large.
_KEY = "project_id, agent_turn_id"


def upgrade() -> None:
    for name, (table, columns) in _INDEXES.items():
        op.drop_index(name, f"flowengine_{table}")
        op.create_index(name, f"flowengine_{table}", columns)
    if op.get_context().dialect.name == "postgresql":
        op.execute(
            "ALTER TABLE flowengine_agent_turn DROP CONSTRAINT flowengine_agent_turn_pkey, "
            f"ADD CONSTRAINT flowengine_agent_turn_pkey PRIMARY KEY ({_KEY})"
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup to go back")
