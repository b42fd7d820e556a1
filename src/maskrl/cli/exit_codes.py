"""The exit codes of every command. The site's reference page is generated from this table."""

EXIT_CODES = {
    0: "Done.",
    1: "The run failed: a loss or a gradient is not finite, or the environment failed twice. The last good checkpoint is kept. "
    "For a sweep: some runs failed. For commands that play: the environment failed. Also any unexpected error, with its traceback.",
    2: "Something that you can fix; the message says what and how. Nothing is lost.",
    129: "The terminal was closed (SIGHUP). The run is saved.",
    130: "Ctrl-C (SIGINT). The run is saved.",
    143: "SIGTERM. The run is saved.",
}
