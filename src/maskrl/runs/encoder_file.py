"""An encoder by itself, as a safetensors file: the result of pre-training, with which a run may begin."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from maskrl.files import status_of, write_whole
from maskrl.nn.encoders import Encoder
from maskrl.runs.directory import RunError

KEY = "maskrl_encoder"  # of the one entry of the metadata: so equal encoders are equal files


def write(path: Path, encoder: Encoder, about: Mapping[str, Any]) -> None:
    """Write the whole file or nothing. `about` says how the encoder was made; only people read it."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    write_whole(path, save(tensors, metadata={KEY: json.dumps(about)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights, and how they were made."""
    if status_of(path.parent, path.name) is None:
        raise RunError(f"There is no file {path}. `maskrl pretrain` makes one.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise ValueError("it is something else in safetensors")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata[KEY])  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} is not an encoder of `maskrl pretrain`: {error}.") from error


def load(path: Path, encoder: Encoder) -> None:
    """Copy the weights of the file into an encoder of the same shape."""
    encoder.load_state_dict(fitting(path, encoder))


def fitting(path: Path, encoder: Encoder) -> dict[str, Tensor]:
    """The weights of the file. Refuses those of another shape than the encoder's, which may be without data."""
    weights, _ = read(path)
    there = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    here = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    if there != here:
        name = next(name for name in (*here, *there) if there.get(name) != here.get(name))
        raise RunError(
            f"{path} holds another encoder: its {name} is {there.get(name, 'missing')}, the recipe's "
            f"{here.get(name, 'missing')}. Pre-train with the same env.size, env.frame_stack, agent.augment.crop and "
            "agent.encoder as the run that is to begin with it."
        )
    return weights
