"""Turns of agents: state machines and decisions, pure."""
