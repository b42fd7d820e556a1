"""How fast updates, replay, environments and runs are: `maskrl bench`."""
