"""A study that is written down before it is run: a Markdown file with the arguments of its sweeps in blocks named `sweep`.

studies/lite-dmcontrol.md says why and how, and has

```sweep
dmcontrol-100k --profile lite --tasks reacher-easy,cartpole-swingup seed=11,12,13,14,15
```

`maskrl sweep studies/lite-dmcontrol` makes these runs, and `maskrl plan` forecasts their cost. The page that people read is the
page that runs.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from maskrl.files import RunError, read_bytes

OPTIONS = ("profile", "tasks", "methods", "seeds")
LARGEST = 1_000_000  # bytes of a page at most


class Line(NamedTuple):
    """The arguments of one sweep, as they would be typed."""

    name: str
    grid: tuple[str, ...]
    options: dict[str, str]  # among `OPTIONS`

    def listed(self, option: str) -> list[str]:
        return [word.strip() for word in self.options.get(option, "").split(",") if word.strip()]


def page_of(name: str) -> Path | None:
    """The file of a study: `studies/lite-dmcontrol` is `studies/lite-dmcontrol.md`. None: the name is of something else."""
    path = Path(name)
    page = path if path.suffix == ".md" else path.with_name(f"{path.name}.md")
    return page if path.suffix == ".md" or path.parts[:1] == ("studies",) or page.is_file() else None


def read(page: Path) -> list[Line]:
    """Its sweeps, in the order of the page."""
    try:
        there = page.resolve()
        text = read_bytes(there.parent, there.name, most=LARGEST)
    except OSError as error:
        raise ValueError(f"{page} cannot be read: {error.strerror}. A study is a Markdown file.") from error
    except RunError as error:  # no file, or too large for a page that people read
        raise ValueError(str(error)) from error
    blocks = re.findall(r"^```sweep[ \t]*\n(.*?)^```", text.decode("utf-8", "replace"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    if not lines:
        raise ValueError(
            f"{page} has no block that begins with ```sweep: write the arguments of `maskrl sweep` into one."
        )
    return [_parsed(page, line) for line in lines]


def _parsed(page: Path, line: str) -> Line:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ValueError(f"{page}: {line!r} cannot be read: {error}.") from error
    name, grid, options = "", list[str](), dict[str, str]()
    rest = iter(words)
    for word in rest:
        if word.startswith("--"):
            option, sign, value = word[2:].partition("=")
            if option not in OPTIONS:
                raise ValueError(f"{page}: {word} is not an option of a study. There are --{', --'.join(OPTIONS)}.")
            options[option] = value if sign else next(rest, "")
        elif "=" in word:
            grid.append(word)
        elif not name:
            name = word
        else:
            raise ValueError(f"{page}: {word!r} comes after {name!r}: a line has the name of one sweep.")
    if not name:
        raise ValueError(f"{page}: {line!r} names no sweep, such as dmcontrol-100k.")
    return Line(name, tuple(grid), options)
