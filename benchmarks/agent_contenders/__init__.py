"""One program for each system that runs turns of agents; see benchmarks/agents.py."""
