"""An encoder in a safetensors file of its own: the result of pre-training, from which a run may start."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from maskrl.files import ENCODER, open_file, write_whole
from maskrl.nn.encoders import Encoder
from maskrl.runs.directory import RunError, opening_encoder

KEY = "maskrl_encoder"  # the only metadata entry, so that equal encoders give equal files


def write(path: Path, encoder: Encoder, about: Mapping[str, Any]) -> None:
    """Write the whole file or nothing. `about`: how the encoder was made, for readers only."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    write_whole(path, save(tensors, metadata={KEY: json.dumps(about)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights, and `about`: how they were made."""
    with opening_encoder(path):
        open_file(path.parent, path.name, most=ENCODER).close()
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise ValueError("it is a safetensors file with other content")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata[KEY])  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(
            f"{path} is not an encoder of `maskrl pretrain`: {error}. Name its encoder.safetensors."
        ) from error


def load(path: Path, encoder: Encoder) -> None:
    """Copy the weights of the file into an encoder of the same shape."""
    encoder.load_state_dict(fitting(path, encoder))


def fitting(path: Path, encoder: Encoder) -> dict[str, Tensor]:
    """Read the weights; raise RunError if their shapes differ from the encoder's, which may be on the meta device."""
    weights, _ = read(path)
    there = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    here = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    if there != here:
        name = next(name for name in (*here, *there) if there.get(name) != here.get(name))
        raise RunError(
            f"{path} does not fit the recipe: its {name} is {there.get(name, 'missing')}, the recipe's "
            f"{here.get(name, 'missing')}. Pre-train with the same env.size, env.frame_stack, agent.augment.crop and "
            "agent.encoder as the run that starts from it."
        )
    return weights
