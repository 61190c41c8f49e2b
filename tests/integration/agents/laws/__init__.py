"""The laws of the agent protocol, as checks of the rows before and after each commit."""
