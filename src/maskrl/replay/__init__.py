"""What the agent has experienced: every frame stored once, read as transitions or clips, drawn uniformly or by priority."""
