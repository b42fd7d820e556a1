"""Where figures for a paper go, and how they look: sizes, colours, legends.

The same data give the same bytes: nothing of a figure tells the time or the machine. Text stays text in a PDF.
"""

import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from maskrl.envs.base import require_extra
from maskrl.runs.directory import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["pdf", "png"]
Width = Literal["single", "double"]

INCHES: Mapping[Width, float] = {"single": 3.3, "double": 6.8}  # of a column of a page, and of two
TALLEST = 9.2  # inches, of a page
GREY = "#777777"

# Okabe and Ito's colours, which all eyes tell apart, without their yellow, which is hard to see on white, and some darker
# ones: a method of the paper has its own in every figure. Others get Tol's muted ones, in the order of their names.
COLOURS = {
    "mlr": "#0072B2", "baseline": "#D55E00", "playvirtual": "#009E73", "drq": "#CC79A7", "curl": "#E69F00",
    "spr": "#56B4E9", "dreamer": "#7A5195", "sac+ae": "#444444", "slac": "#8C6D31", "planet": "#9A9A9A",
    "der": "#7A5195", "otr": "#444444",  # of Atari, where the four before them are not
}  # fmt: skip
OTHER_COLOURS = ("#882255", "#117733", "#332288", "#AA4499", "#999933", "#661100")
DASHES = ("-", "--", ":", "-.")

STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a $ in the name of a task is a $
    "pdf.fonttype": 42, "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.axisbelow": True,
    "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5, "lines.linewidth": 1.4, "legend.frameon": False,
}  # fmt: skip


@dataclass
class Panels:
    """The panels of a figure, and what its legend has."""

    axes: list["Axes"]
    across: int  # of them, side by side
    legend: dict[str, Any] = field(default_factory=dict)  # label → line


@dataclass
class Figures:
    """Where figures go, and which were made; and in plain words, what could not be drawn."""

    out: Path
    format: Format = "pdf"
    width: Width = "single"
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    looks: Mapping[str, "Style"] = field(default_factory=dict)  # of every method, the same in all figures

    @property
    def inches(self) -> float:
        return INCHES[self.width]

    @contextmanager
    def figure(self, name: str, height: float) -> Iterator["Figure"]:
        """A figure of that height in inches, written when all is drawn; whole or not at all."""
        require_extra("matplotlib", "report")
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_pdf import FigureCanvasPdf
        from matplotlib.figure import Figure  # without pyplot, which would ask for a window system

        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(self.inches, min(TALLEST, height)), layout="constrained")
            yield figure
            file, path = io.BytesIO(), self.out / f"{name}.{self.format}"
            if self.format == "pdf":
                metadata = {"Creator": "maskrl", "Producer": None, "CreationDate": None}
                FigureCanvasPdf(figure).print_pdf(file, metadata=metadata)  # type: ignore[no-untyped-call]
            else:
                figure.set_dpi(300)
                FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})  # type: ignore[no-untyped-call]
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(path, file.getvalue())
        self.files.append(path)

    @contextmanager
    def panels(self, name: str, titles: Sequence[str], across: int, height: float) -> Iterator["Panels"]:
        """A panel for each title, at most `across` side by side; `height` is of a row of them."""
        across = min(len(titles), across)
        down = math.ceil(len(titles) / across)
        with self.figure(name, 0.4 + down * height) as figure:
            grid = list(figure.subplots(down, across, squeeze=False).flat)
            for axes, title in zip(grid, titles, strict=False):
                axes.set_title(title)
            for axes in grid[len(titles) :]:
                axes.set_visible(False)
            panels = Panels(grid[: len(titles)], across)
            yield panels
            if panels.legend:
                self._legend(figure, panels.legend)

    def _legend(self, figure: "Figure", entries: Mapping[str, Any]) -> None:
        """Below the figure, which grows by what it takes."""
        labels = [textwrap.fill(label, 44) for label in entries]
        across = entries_across(labels, self.inches)
        lines = sum(1 + label.count("\n") for label in labels)
        figure.set_figheight(min(TALLEST, figure.get_figheight() + 0.16 * math.ceil(lines / across)))
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": across}
        figure.legend(list(entries.values()), labels, columnspacing=1.2, handlelength=1.6, **where)


def entries_across(labels: Sequence[str], inches: float) -> int:
    """Entries of a legend side by side; a letter of its size is about 1/16 of an inch wide."""
    longest = max((len(line) for label in labels for line in label.split("\n")), default=1)
    return max(1, min(len(labels), 4, int(inches / (0.45 + longest / 16))))


class Style(NamedTuple):
    """How a method looks in every figure."""

    colour: str
    dashes: str


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """One for each. A known method's is always the same; if several have its name, in other letters, their dashes differ.
    24 others differ from each other.
    """
    free = itertools.cycle(Style(colour, dashes) for dashes in DASHES for colour in OTHER_COLOURS)
    found = dict[str, Style]()
    for method in sorted(set(methods), key=lambda method: (method.lower(), method)):
        name = method.lower()
        before = sum(other.lower() == name for other in found)
        found[method] = Style(COLOURS[name], DASHES[before % len(DASHES)]) if name in COLOURS else next(free)
    return found
