"""Self-supervised losses on clips. They must not import agents, replay or environments."""
