"""The replay: stores every frame once; draws transitions and clips uniformly or by priority."""
