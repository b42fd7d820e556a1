"""`python -m maskrl`, if the script is not on the PATH."""

from maskrl.cli import main

if __name__ == "__main__":  # not when a child process imports it again
    main()
