"""Agents: act in environments and learn from a replay."""
