"""A policy as one file that needs neither maskrl nor the environment: ONNX, or torch.export's .pt2.

It takes the environment's newest pictures unchanged, and returns an action in the environment's own action space. It includes the
resizing, which gives the same frames bit for bit (see envs/pixels.py), and stores the results of its check.
"""

import copy
import io
import json
import logging
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from maskrl import __version__
from maskrl.envs.actions import Actions
from maskrl.envs.base import Pad, episode_seed, require_extra
from maskrl.envs.gym import Outside
from maskrl.envs.pixels import GREY, Picture, area_weights
from maskrl.nn.layers import Convolutions
from maskrl.outputs import POLICY, OutputError, require_output
from maskrl.recipes.schema import Recipe, as_json, digest, digest_of_text
from maskrl.runs.directory import Run
from maskrl.runs.loop import EVALUATION_SEED
from maskrl.runs.policy import Policy
from maskrl.words import count

KEY = "maskrl.json"  # of the facts stored with the network
INPUT, BESIDE, OUTPUT = "pictures", "vectors", "action"
ENDINGS = (".onnx", ".pt2")

Pictures = NDArray[np.uint8]  # (N, frame_stack, height, width, channels), oldest first
Play = Callable[
    ..., NDArray[Any]
]  # pictures, and vector observations (N, V) if used → the environment's own actions, one for each


class Exported(nn.Module):
    """(N, frame_stack, height, width, channels) uint8, oldest picture first, and the newest vector observations (N, V) float32 if
    used → N of the environment's own actions.
    """

    bounded: Tensor
    centre: Tensor
    extent: Tensor
    grey: Tensor
    rows: Tensor
    columns: Tensor
    low: Tensor
    high: Tensor
    middle: Tensor
    reach: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        outside = outside_of(policy)
        self.picture, self.actions, self.stack = outside.picture, outside.actions, policy.frame_stack
        self.network = copy.deepcopy(policy.network).cpu().eval()
        for module in list(self.network.modules()):
            for name, inner in module.named_children():
                if isinstance(inner, Convolutions):  # fused kernels run on a CPU only; the values are the same
                    setattr(module, name, nn.Sequential(*inner))
        rows, columns = (area_weights(side, self.picture.size) for side in (self.picture.height, self.picture.width))
        low, high = (np.array(side, np.float32) for side in (self.actions.low, self.actions.high))
        scales = () if outside.vector is None else outside.vector.scales
        for name, array in {
            **dict(zip(("bounded", "centre", "extent"), scales, strict=False)),
            "grey": GREY, "rows": rows, "columns": columns.T.copy(),
            "low": low, "high": high, "middle": (low + high) / 2, "reach": (high - low) / 2,
        }.items():  # fmt: skip
            self.register_buffer(name, torch.from_numpy(np.array(array)), persistent=False)

    def frames(self, pictures: Tensor) -> Tensor:
        """(N, S, H, W, C) uint8 → (N, S·c, size, size), whole numbers in 0..255, bit for bit as `Picture.frame`."""
        picture, values = self.picture, pictures.float()
        if picture.channels == 4:
            values = values[..., :3]
        if picture.grey and picture.channels > 1:
            values = ((values * self.grey).sum(dim=-1, keepdim=True) + 0.5).floor()
        values = values.permute(0, 1, 4, 2, 3)
        if (picture.height, picture.width) != (picture.size, picture.size):
            values = (torch.matmul(torch.matmul(self.rows, values), self.columns) + 0.5).floor()
        channels, size, _ = picture.frame_shape
        return values.reshape(-1, self.stack * channels, size, size)

    def numbers(self, vectors: Tensor) -> Tensor:
        """Scale vector observations (N, V) as `Vector.scaled` does."""
        within = ((vectors - self.centre) / self.extent).clamp(-1, 1)
        return torch.where(self.bounded, within, vectors.sign() * vectors.abs().log1p())

    def forward(self, pictures: Tensor, vectors: Tensor | None = None) -> Tensor:
        beside = None if vectors is None else self.numbers(vectors)
        chosen: Tensor = self.network(self.frames(pictures), beside)
        actions = self.actions
        if actions.kind == "box":
            within = torch.clamp(self.middle + self.reach * chosen, self.low, self.high)
            return within.reshape(-1, *actions.shape)
        if actions.kind == "discrete":
            return chosen + actions.starts[0]
        places = [math.prod(actions.counts[part + 1 :]) for part in range(len(actions.counts))]
        parts = [(chosen // place) % count for place, count in zip(places, actions.counts, strict=True)]
        return torch.stack(parts, dim=-1) + torch.tensor(actions.starts)


def outside_of(policy: Policy) -> Outside:
    """The environment's observations and actions; for maskrl's own suites, the network's frames and actions."""
    if policy.outside is not None:
        return policy.outside
    (channels, height, width), spaces = policy.frame_shape, policy.spaces
    count = spaces.action_dim
    if spaces.discrete:
        actions = Actions(kind="discrete", counts=(count,), starts=(0,))
    else:
        actions = Actions(kind="box", low=(-1.0,) * count, high=(1.0,) * count, shape=(count,), dtype="float32")
    return Outside(Picture(height, width, channels, height), actions)


# ── Writing and reading a file ────────────────────────────────────────────────────────────────────────────────────────


def about(policy: Policy, recipe: Recipe) -> dict[str, Any]:
    """The facts that a user of the file needs."""
    outside = outside_of(policy)
    picture = outside.picture
    shape = f"(batch, {policy.frame_stack}, {picture.height}, {picture.width}, {picture.channels})"
    vector = outside.vector
    beside = {} if vector is None else {
        "beside": f"{BESIDE}: float32 (batch, {len(vector)}), {', '.join(vector.keys)} of the newest observation"
    }  # fmt: skip
    return {
        "maskrl": __version__,
        "input": f"{INPUT}: uint8 {shape}, the oldest picture first; at the start of an "
        + ("episode its first picture again" if policy.pad == "repeat" else "episode black pictures before its first"),
        **beside,
        "output": f"{OUTPUT}: the environment's own action",
        "frame_stack": policy.frame_stack,
        "pad": policy.pad,
        "action_repeat": recipe.env.action_repeat,
        "normalisation": "inside: resize to a frame, centre crop, division by 255",
        **outside.as_plain(),
        "trained": asdict(policy.clock),
        "recipe": json.loads(as_json(recipe)),
    }


def convert(policy: Policy, path: Path) -> Callable[[dict[str, Any]], None]:
    """Convert the policy to the format of the path's suffix. Returns a function that writes the file with the given facts."""
    module, outside = Exported(policy).eval(), outside_of(policy)
    examples = tuple(torch.from_numpy(part) for part in _noise(policy, 2))
    batch = torch.export.Dim("batch")
    names = (INPUT,) if outside.vector is None else (INPUT, BESIDE)
    with torch.no_grad(), _quiet():
        convert = _as_pt2 if path.suffix == ".pt2" else _as_onnx
        store = convert(module, examples, {name: {0: batch} for name in names})

    def write(told: dict[str, Any]) -> None:
        aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")  # write the whole file or nothing
        try:
            with _quiet():
                store(aside, json.dumps(told))
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)

    return write


def write_checked(
    path: Path, policy: Policy, recipe: Recipe, *, played: Recipe, episodes: int, observations: int
) -> tuple[dict[str, Any], "Proof"]:
    """Write the policy of a run with its facts and its check, which plays in the environment of `played`. Returns both."""
    told = about(policy, recipe)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        write = convert(policy, file)
        write(told)
        play = player(file)
        if played.env.is_trusted:
            quiet, seed = replace(played, overlap=False), played.seed + EVALUATION_SEED
            proof = prove(play, policy, quiet, observations=observations, episodes=episodes, seed=seed)
        else:
            proof = prove_on_noise(play, policy, observations=min(observations, 100))
        write(told | {"proof": proof._asdict()})
    return told, proof


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside the path to write and check; it replaces the path at the end, unless there was an error."""
    aside = path.with_name(f".{path.stem}.{os.getpid()}.unchecked{path.suffix}")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def facts_of(path: Path) -> dict[str, Any] | None:
    """The facts stored in an exported file; None if there are none. Runs no code of the file."""
    try:
        if path.suffix == ".pt2":
            with zipfile.ZipFile(path) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith(f"/{KEY}"))
                told = archive.read(name)
        else:
            import onnx

            props = onnx.load(path, load_external_data=False).metadata_props
            told = next(prop.value for prop in props if prop.key == KEY).encode()
        facts = json.loads(told)
    except Exception:  # a damaged file, or one of another program
        return None
    return facts if isinstance(facts, dict) else None


def require_place(path: Path, run: Run, *, force: bool) -> None:
    """Raise an error if the path has something other than an earlier export of this run. `force`: allow any file."""
    require_output(path, POLICY, force=force)
    if not force:
        require_same_run(path, run)


def require_same_run(path: Path, run: Run) -> None:
    """Raise an error if there is an exported policy of another run at this path."""
    if not path.exists():
        return
    recipe = (facts_of(path) or {}).get("recipe")
    if isinstance(recipe, dict) and digest_of_text(json.dumps(recipe)) in (digest(run.recipe), *run.digests):
        return
    whose = f"{recipe.get('name')}, seed {recipe.get('seed')}" if isinstance(recipe, dict) else "unknown"
    raise OutputError(
        f"{path} is an exported policy of another run ({whose}). Name another file, or replace it with --force."
    )


Store = Callable[[Path, str], None]


def _noise(policy: Policy, count: int, seed: int = 0) -> tuple[NDArray[Any], ...]:
    """Random pictures, and random vector observations if the policy takes them."""
    outside, generator = outside_of(policy), np.random.default_rng(seed)
    picture, vector = outside.picture, outside.vector
    shape = (count, policy.frame_stack, picture.height, picture.width, picture.channels)
    pictures = generator.integers(256, size=shape, dtype=np.uint8)
    return (pictures,) if vector is None else (pictures, generator.normal(size=(count, len(vector))).astype(np.float32))


def _as_pt2(module: nn.Module, examples: tuple[Tensor, ...], batch: dict[str, Any]) -> Store:
    program = torch.export.export(module, examples, dynamic_shapes=batch)
    return lambda path, told: torch.export.save(program, path, extra_files={KEY: told})


def _as_onnx(module: nn.Module, examples: tuple[Tensor, ...], batch: dict[str, Any]) -> Store:
    import onnx

    program = torch.onnx.export(
        module,
        examples,
        dynamo=True,
        dynamic_shapes=batch,
        input_names=list(batch),
        output_names=[OUTPUT],
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    model.producer_name, model.producer_version = "maskrl", __version__
    onnx.checker.check_model(model)

    def store(path: Path, told: str) -> None:
        onnx.helper.set_model_props(model, {KEY: told})
        path.write_bytes(model.SerializeToString())

    return store


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of torch's exporters about themselves and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def require_format(path: Path) -> None:
    """Raise an error for an unknown format, or if the format's package is missing."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"A policy is a .onnx or a .pt2 file; {path.name!r} ends in neither.")
    for module in ("onnx", "onnxruntime", "onnxscript") if path.suffix == ".onnx" else ():
        require_extra(module, "export")


def player(path: Path) -> Play:
    """A function that computes actions with an exported file: by onnxruntime, or by torch alone."""
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()

        def by_torch(*inputs: NDArray[Any]) -> NDArray[Any]:
            with torch.no_grad():
                actions: NDArray[Any] = module(*(torch.from_numpy(part) for part in inputs)).numpy()
            return actions

        return by_torch
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda *inputs: np.asarray(session.run(None, dict(zip((INPUT, BESIDE), inputs, strict=False)))[0])


# ── The check ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Proof(NamedTuple):
    """How closely an exported file agrees with its policy."""

    on: str  # what they were compared on
    observations: int
    largest_difference: float  # between two actions, in the environment's own units
    different: int | None = None  # observations with a different action, if actions are discrete
    returns: tuple[float, ...] = ()  # of the exported file
    policy_returns: tuple[float, ...] = ()

    @property
    def words(self) -> str:
        """A sentence."""
        compared = f"{self.observations:,} {self.on}: largest difference of an action {self.largest_difference:.3g}"
        compared += "" if self.different is None else f", {count(self.different, 'other choice')}"
        if not self.returns:
            return compared
        apart = max(abs(one - other) for one, other in zip(self.returns, self.policy_returns, strict=True))
        same = "the same returns" if apart == 0 else f"returns that differ by up to {apart:.2g}"
        return f"{compared}; {same} over {count(len(self.returns), 'episode')}"


def prove(play: Play, policy: Policy, recipe: Recipe, *, observations: int, episodes: int, seed: int) -> Proof:
    """Play episodes with the policy and with its file from the same starts, and compare actions on the policy's observations."""
    differences: list[float] = []
    recent = Recent(policy.frame_stack, policy.pad)

    def by_policy(picture: Pictures, *beside: NDArray[np.float32]) -> Any:
        action, pictures = policy.act(picture, *beside), recent.push(picture)
        if len(differences) < observations:
            other = play(pictures, *(row[None] for row in beside))[0]
            differences.append(float(np.abs(np.asarray(other, np.float64) - action).max()))
        return action

    def by_file(picture: Pictures, *beside: NDArray[np.float32]) -> Any:
        return play(recent.push(picture), *(row[None] for row in beside))[0]

    with closing(recipe.env.make(seed=recipe.seed, training=False)) as env:
        mine, number = [], 0
        while number < episodes or len(differences) < observations:
            policy.reset()
            recent.reset()
            mine.append(_return_of(env, by_policy, episode_seed(seed, number)))
            number += 1
        theirs = []
        for number in range(episodes):
            recent.reset()
            theirs.append(_return_of(env, by_file, episode_seed(seed, number)))
    different = None if outside_of(policy).actions.kind == "box" else sum(map(bool, differences))
    return Proof(
        "observations of its own play",
        len(differences),
        max(differences),
        different,
        tuple(theirs),
        tuple(mine[:episodes]),
    )


def prove_on_noise(play: Play, policy: Policy, *, observations: int) -> Proof:
    """Compare actions on random pictures, for environments that may not run here."""
    module, differences = Exported(policy).eval(), []
    for number in range(observations):
        noise = _noise(policy, 1, number)
        with torch.no_grad():
            expected = module(*(torch.from_numpy(part) for part in noise)).numpy()
        differences.append(float(np.abs(np.asarray(play(*noise), np.float64) - expected).max()))
    different = None if outside_of(policy).actions.kind == "box" else sum(map(bool, differences))
    return Proof("random pictures", observations, max(differences), different)


class Recent:
    """The stack of newest pictures of an episode, the input of an exported file."""

    def __init__(self, stack: int, pad: Pad) -> None:
        self._stack, self._pad = stack, pad
        self._pictures: list[Pictures] = []

    def reset(self) -> None:
        self._pictures = []

    def push(self, picture: Pictures) -> Pictures:
        """Add a picture (H, W, C); return the stack (1, stack, H, W, C)."""
        past = picture if self._pad == "repeat" else np.zeros_like(picture)
        self._pictures = [*(self._pictures or [past] * self._stack)[1:], picture.copy()]
        return np.stack(self._pictures)[None]


def _return_of(env: Any, act: Callable[..., Any], seed: int) -> float:
    """The return of an episode, played from pictures with the environment's own actions."""
    obs, _ = env.reset(seed=seed, options={"restart": True})
    raw, step = getattr(env.unwrapped, "raw", None), getattr(env.unwrapped, "step_outside", env.step)
    beside = getattr(env.unwrapped, "raw_vector", lambda: None)
    channels = env.unwrapped.observation_space.shape[0]
    total, ended = 0.0, False
    while not ended:
        picture = obs[-channels:].transpose(1, 2, 0) if raw is None else raw()
        numbers = beside()
        obs, reward, terminated, truncated, _ = step(act(picture, *([] if numbers is None else [numbers])))
        total, ended = total + float(reward), terminated or truncated
    return total
