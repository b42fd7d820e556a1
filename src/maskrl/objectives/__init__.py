"""Self-supervised losses on clips. They may not know agents, replay or environments."""
