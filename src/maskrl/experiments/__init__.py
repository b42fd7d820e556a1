"""One run, and many."""
