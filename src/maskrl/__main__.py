"""`python -m maskrl`, for where the script is not on the path."""

from maskrl.cli import main

main()
