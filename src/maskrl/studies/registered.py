"""A study that is registered before it is run: a Markdown file with the arguments of its sweeps in blocks named `sweep`.

studies/lite-dmcontrol.md gives the reasons and the method, and contains

```sweep
dmcontrol-100k --profile lite --tasks reacher-easy,cartpole-swingup seed=11,12,13,14,15
```

`maskrl sweep studies/lite-dmcontrol` executes these runs, and `maskrl plan` forecasts their cost. So the text and the runs cannot
differ.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from maskrl.files import RunError, read_bytes

OPTIONS = ("profile", "tasks", "methods", "seeds")
LARGEST = 1_000_000  # maximum bytes of a page


class Line(NamedTuple):
    """The arguments of one sweep."""

    name: str
    grid: tuple[str, ...]
    options: dict[str, str]  # from `OPTIONS`

    def listed(self, option: str) -> list[str]:
        return [word.strip() for word in self.options.get(option, "").split(",") if word.strip()]


def page_of(name: str) -> Path | None:
    """The file of a study: `studies/lite-dmcontrol` → `studies/lite-dmcontrol.md`. None if this is not the name of a study."""
    path = Path(name)
    page = path if path.suffix == ".md" else path.with_name(f"{path.name}.md")
    return page if path.suffix == ".md" or path.parts[:1] == ("studies",) or page.is_file() else None


def read(page: Path) -> list[Line]:
    """The sweeps of a page, in order."""
    try:
        there = page.resolve()
        text = read_bytes(there.parent, there.name, most=LARGEST)
    except OSError as error:
        raise ValueError(f"{page} cannot be read: {error.strerror}. A study is a Markdown file.") from error
    except RunError as error:  # not a regular file, or too large
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
            raise ValueError(f"{page}: {word!r} comes after {name!r}: a line names only one sweep.")
    if not name:
        raise ValueError(f"{page}: {line!r} names no sweep, such as dmcontrol-100k.")
    return Line(name, tuple(grid), options)
