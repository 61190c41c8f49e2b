"""Generated descriptions of workflows, written in several languages."""
