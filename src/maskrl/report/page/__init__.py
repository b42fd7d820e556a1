"""The page: one HTML file with everything in it, for any browser, without a server and without the network."""

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

LONG = 20  # letters of a word that is broken on paper, so that its table fits
NAMES = {"md": "Markdown", "tex": "LaTeX", "csv": "CSV"}


def render(report: Report) -> str:
    """The page as text. Every name in it is data: jinja2 escapes it in HTML, and `script_json` within the script."""
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
    """Neighbours that are about the same runs, together: for the contents."""
    return [(over, list(group)) for over, group in itertools.groupby(sections, key=lambda section: section.over)]


def _within(title: str, section: Section) -> str:
    """A caption below a heading that names the runs already."""
    return title.removesuffix(f", {section.over}") if section.over else title


def script_json(value: Any) -> str:
    """JSON that cannot end its script element, nor be taken for markup."""
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
    """Without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return (int(value) if value.is_integer() and abs(value) < 2**53 else value) if math.isfinite(value) else None
    return value


def _file(name: str) -> str:
    return (resources.files("maskrl.report") / "page" / name).read_text(encoding="utf-8")
