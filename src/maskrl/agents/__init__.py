"""Agents: they act, and learn from a replay."""
