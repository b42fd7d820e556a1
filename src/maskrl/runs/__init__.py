"""One run: its loop, directory, checkpoints, evaluation and loggers."""
