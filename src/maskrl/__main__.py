"""`python -m maskrl`, for where the script is not on the path."""

from maskrl.cli import main

if __name__ == "__main__":  # not where a process of ours imports it again
    main()
