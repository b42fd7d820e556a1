"""The state of an objective and its optimiser in one safetensors file. Reading it cannot run code."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


def write_state(path: Path, state: dict[str, Any], words: str) -> None:
    """Write the state of an `AuxiliaryStep`, with a `generator` and `streams`. `words`: its configs as text."""
    optimizer = state["optimizer"]
    tensors = {f"objective/{name}": value for name, value in state["objective"].items()}
    tensors |= {
        f"optimizer/{index}/{name}": value
        for index, moments in optimizer["state"].items()
        for name, value in moments.items()
    }
    tensors["generator"] = state["generator"]
    plain = {"groups": optimizer["param_groups"], "updates": state["updates"], "streams": state["streams"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.new")  # so that a crash leaves the old file intact
    # `clone`: slow copies may share memory with their sources, which safetensors does not allow.
    save_file(
        {name: value.clone().contiguous() for name, value in tensors.items()},
        aside,
        metadata={"configs": words, "plain": json.dumps(plain)},
    )
    aside.replace(path)


def read_state(path: Path, words: str) -> dict[str, Any]:
    """Read the state to the CPU; raise ValueError if its configs differ."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        configs, plain = metadata["configs"], json.loads(metadata["plain"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} was not written by Auxiliary.save: {error}") from error
    if configs != words:
        raise ValueError(
            f"{path} belongs to an objective with other values. It has\n  {configs}\nbut this callback has\n  {words}\n"
            "Create the callback with the file's values."
        )
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            index, _, moment = rest.partition("/")
            moments.setdefault(int(index), {})[moment] = value
    return {
        "objective": {
            name.removeprefix("objective/"): value for name, value in tensors.items() if name.startswith("objective/")
        },
        "optimizer": {"state": moments, "param_groups": plain["groups"]},
        "updates": plain["updates"],
        "generator": tensors["generator"],
        "streams": plain["streams"],
    }
