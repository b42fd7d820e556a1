"""`maskrl bench`: the speed of updates, replay, environments and runs."""
