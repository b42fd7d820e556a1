"""`maskrl licences`: the licences of the installed packages that maskrl uses."""

import json
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from maskrl.cli.words import AsJson, console, table


def licences(as_json: AsJson = False) -> None:
    """List the licences of maskrl and of the packages it depends on.

    $ maskrl licences
    $ maskrl licences --json
    """
    rows = [(one.metadata["Name"], one.version, licence_of(one)) for one in dependencies()]
    if as_json:
        print(json.dumps([dict(zip(("name", "version", "licence"), row, strict=True)) for row in rows], indent=2))
    else:
        console().print(table(("package", "version", "licence"), rows, left=3, folds=("licence",)))


def dependencies() -> list[metadata.Distribution]:
    """The installed packages that maskrl and its extras require, directly or indirectly, by name."""
    found, waiting = dict[str, metadata.Distribution](), ["maskrl"]
    while waiting:
        name = _normal(waiting.pop())
        installed = next(iter(metadata.distributions(name=name)), None)
        if name not in found and installed is not None:
            found[name] = installed
            # Leave out the extras of other packages.
            waiting += [each for each, extra in _requirements(installed) if name == "maskrl" or not extra]
    return [found[name] for name in sorted(found)]


def _requirements(installed: metadata.Distribution) -> Iterator[tuple[str, bool]]:
    """The names of required packages, and whether only an extra requires them."""
    for line in installed.requires or ():
        if (name := re.match(r"[\w.-]+", line)) is not None:
            yield name[0], "extra ==" in line


def licence_of(installed: metadata.Distribution) -> str:
    """The licence in the package's metadata: an SPDX expression, a classifier, or free text."""
    about: Any = installed.metadata
    classifiers = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License ::")
    ]
    words = (about.get("License") or "").strip()
    told = [about.get("License-Expression") or "", ", ".join(classifiers), words.splitlines()[0] if words else ""]
    return next((one for one in told if one and one != "UNKNOWN"), "unknown: see its files")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
