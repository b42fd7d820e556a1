"""The paper's numbers, each with its source."""
