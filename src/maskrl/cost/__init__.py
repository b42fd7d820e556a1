"""What a run takes: operations, seconds, memory and disk."""
