"""The cost of a run: operations, seconds, memory and disk."""
