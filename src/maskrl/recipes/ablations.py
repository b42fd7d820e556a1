"""The paper's ablations: every row of its tables under the label it has there, as overrides of a task's recipe.

`maskrl.recipes.ablation("masking/MLR-S", "dmcontrol/walker-walk")` is one of them. docs/fidelity.md describes our choices where the
paper leaves details open; its scores are in `maskrl.recipes.published`, under the same table and label.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from maskrl.recipes import dmcontrol
from maskrl.recipes.schema import Recipe

REFERENCE: tuple[str, ...] = ()  # MLR itself: the unchanged recipe
BASELINE = ("objective=none",)

UNSEEN = "values: ours; the paper has a figure, which we have not seen, and no numbers"


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper."""

    title: str
    place: str  # in the paper
    table: str | None  # its label in the paper's source, as in `maskrl.recipes.published`; None: a figure
    rows: Mapping[
        str, tuple[str, ...]
    ]  # label → overrides; {k}, {h} and {w} are the sides of the recipe's cube, {encoder} is `encoder(task)`
    tasks: tuple[str, ...] = tuple(dmcontrol.PAPER_TASKS)  # that the paper used
    frames: tuple[int, ...] = (100_000,)  # at which the paper reports scores
    seeds: int = 5
    note: str = ""


STUDIES: dict[str, Study] = {
    "masking": Study(
        "masking strategy and reconstruction target",
        "Table 2",
        "table:ablate_strategy_target",
        {
            "Baseline": BASELINE,
            "MLR-S": ("objective.mask.strategy=spatial",),
            "MLR-T": ("objective.mask.strategy=temporal",),
            "MLR-Pixel": ("objective.reconstruct=pixels",),
            "MLR": REFERENCE,
        },
    ),
    "variants": Study(
        "action tokens, masked features, momentum decoder",
        "Table 3",
        "table:ablate_variants",
        {
            "Baseline": BASELINE,
            "MLR w.o. ActTok": ("objective.action_tokens=false",),
            "MLR-F": ("objective.corrupt=features",),
            "MLR-MoDec": ("objective.momentum_decoder=true",),
            "MLR": REFERENCE,
        },
    ),
    "decoder-depth": Study(
        "depth of the decoder",
        "Table 4",
        "table:ablate_decoder",
        {
            "layers=1": ("objective.decoder_depth=1",),
            "layers=2": REFERENCE,
            "layers=4": ("objective.decoder_depth=4",),
            "layers=8": ("objective.decoder_depth=8",),
        },
    ),
    "heads": Study(
        "similarity loss, projection and prediction heads",
        "Table 7",
        "table:ablate_metric_heads",  # which has check marks for labels; these labels are ours
        {
            "Baseline": BASELINE,
            "cosine, no heads": ("objective.projection=none", "objective.prediction=none"),
            "cosine, prediction head": ("objective.projection=none",),
            "cosine, both heads": REFERENCE,
            "mse, both heads": ("objective.distance=mse",),
        },
    ),
    "clip-length": Study(
        "clip length K",
        "Table 8",
        "table:ablate_seq_len",
        {
            "Baseline": BASELINE,
            "K=8": ("objective.clip_length=8",),
            "K=16": REFERENCE,
            "K=24": ("objective.clip_length=24",),
        },
    ),
    "pretraining": Study(
        "pretraining against joint learning",
        "Table 9",
        "table:pretraining",
        {
            "Baseline": BASELINE,
            "MLR-Pretraining": (*BASELINE, "encoder_from={encoder}"),  # made by `maskrl pretrain`
            "MLR-Auxiliary": REFERENCE,
        },
        tasks=("cheetah-run", "reacher-easy"),
    ),
    "harder-tasks": Study(
        "tasks that are harder",
        "Table 11",
        "table:challenging_tasks",
        {"Baseline": BASELINE, "MLR": REFERENCE},
        tasks=tuple(dmcontrol.SISTERS),
        frames=(100_000, 500_000),  # both from one run: budget.frames=500000
        seeds=3,
    ),
    "mask-ratio": Study(
        "hidden share η",
        "Figure 5",
        None,
        {
            "ratio=0.1": ("objective.mask.ratio=0.1",),
            "ratio=0.3": ("objective.mask.ratio=0.3",),
            "ratio=0.5": REFERENCE,
            "ratio=0.7": ("objective.mask.ratio=0.7",),
            "ratio=0.9": ("objective.mask.ratio=0.9",),
        },
        seeds=3,
        note=UNSEEN,
    ),
    "cube-depth": Study(
        "depth k of the cubes",
        "Figure 9 (a)",
        None,
        {  # depths must divide K = 16; 1 is MLR-S. The reference depends on the task.
            "k=2": ("objective.mask.cube=2,{h},{w}",),
            "k=4": ("objective.mask.cube=4,{h},{w}",),
            "k=8": ("objective.mask.cube=8,{h},{w}",),
            "k=16": ("objective.mask.cube=16,{h},{w}",),
        },
        seeds=3,
        note=UNSEEN,
    ),
    "patch": Study(
        "height and width of the cubes",
        "Figure 9 (b)",
        None,
        {  # patches must divide the frame of 100 pixels
            "h=w=5": ("objective.mask.cube={k},5,5",),
            "h=w=10": REFERENCE,
            "h=w=20": ("objective.mask.cube={k},20,20",),
            "h=w=25": ("objective.mask.cube={k},25,25",),
        },
        seeds=3,
        note=UNSEEN,
    ),
}

# The lite profile has frames of 48 pixels, patches of 8, and feature maps of 9 × 9 cells, 4 pixels apart. Rows in pixels or cells
# are scaled accordingly: patches still divide the frame, and 2 cells still equal the 8 pixels of a patch.
LITE: dict[str, tuple[str, ...]] = {
    "variants/MLR-F": ("objective.corrupt=features", "objective.mask.feature_patch=2"),
    "patch/h=w=5": ("objective.mask.cube={k},4,4",),
    "patch/h=w=20": ("objective.mask.cube={k},16,16",),
    "patch/h=w=25": ("objective.mask.cube={k},24,24",),
}


def names() -> list[str]:
    """The names of all rows that can be run, such as "masking/MLR-S"."""
    return [f"{name}/{label}" for name, study in STUDIES.items() for label in study.rows]


def overrides(name: str, recipe: Recipe) -> list[str]:
    """The overrides that turn a task's MLR recipe into this row of an ablation."""
    study, _, label = name.partition("/")
    lines = STUDIES[study].rows[label]
    if recipe.profile == "lite":
        lines = LITE.get(name, lines)
    masks = None if recipe.objective is None else recipe.objective.masks
    if masks is None:
        raise ValueError(f"The paper's ablations vary MLR; {recipe.name} has method {recipe.method}. Use mlr.")
    k, h, w = masks.cube
    return [line.format(k=k, h=h, w=w, encoder=encoder(recipe.name)) for line in lines]


def encoder(task: str) -> str:
    """The default path of MLR-Pretraining's encoder file; {seed} stands for the run's seed."""
    return f"pretrained/{task}/seed-{{seed}}/encoder.safetensors"
