"""The replay: every frame is stored once, read as transitions or clips, and drawn uniformly or by priority."""
