"""The page: one self-contained HTML file for any browser, without a server or network."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from maskrl import __version__
from maskrl.envs.base import require_extra
from maskrl.report.document import Chart, Report, Section
from maskrl.report.exports import FORMATS, all_notes
from maskrl.report.tables import Table
from maskrl.words import count

LONG = 20  # letters from which a word is broken in print, so that its table fits
NAMES = {"md": "Markdown", "tex": "LaTeX", "csv": "CSV"}


def render(report: Report) -> str:
    """The page as HTML. All names are data: jinja2 escapes them in HTML, and `script_json` in the script."""
    require_extra("jinja2", "report")
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("maskrl.report", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["notes"] = all_notes
    environment.filters["counted"] = count
    environment.filters["groupby_runs"] = _by_runs
    environment.filters["within"] = _within
    environment.filters["capitalise"] = lambda text: text[:1].upper() + text[1:]
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["long"] = lambda text: any(len(word) > LONG for word in text.split())
    environment.tests["chart"] = lambda block: isinstance(block, Chart)
    environment.tests["finite"] = lambda value: value is not None and math.isfinite(value)
    return environment.get_template("report.html").render(
        report=report,
        version=__version__,
        formats=NAMES,
        style=Markup(_file("page.css")),  # our own files, not data
        script=Markup(_file("page.js")),
        data=Markup(script_json(_data(report))),
    )


def _by_runs(sections: Sequence[Section]) -> list[tuple[str, list[Section]]]:
    """Group neighbouring sections about the same runs, for the table of contents."""
    return [(over, list(group)) for over, group in itertools.groupby(sections, key=lambda section: section.over)]


def _within(title: str, section: Section) -> str:
    """A caption without the runs that its section's heading names."""
    return title.removesuffix(f", {section.over}") if section.over else title


def script_json(value: Any) -> str:
    """JSON that can neither end its script element nor be read as markup."""
    text = json.dumps(_plain(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(report: Report) -> dict[str, Any]:
    return {
        "methods": report.methods,
        "charts": {
            chart.key: {key: value for key, value in asdict(chart).items() if key != "key"} for chart in report.charts
        },
        "tables": {table.key: {ending: form(table) for ending, form in FORMATS.items()} for table in report.tables},
    }


def _plain(value: Any) -> Any:
    """Replace numbers that JSON lacks, such as NaN, by null."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return (int(value) if value.is_integer() and abs(value) < 2**53 else value) if math.isfinite(value) else None
    return value


def _file(name: str) -> str:
    return (resources.files("maskrl.report") / "page" / name).read_text(encoding="utf-8")
