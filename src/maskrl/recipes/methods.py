"""Methods: published names for pairs of an agent's values and an objective."""

from collections.abc import Mapping
from typing import NamedTuple


class Pair(NamedTuple):
    """The agent and the objective of a method on one suite."""

    agent: str | None  # the name of the agent's settings; None: the suite's default agent
    objective: str | None = None


class Method(NamedTuple):
    """A published method, with its pair on each suite that it was published for."""

    pairs: Mapping[str, Pair]  # by suite
    source: str

    @property
    def suites(self) -> tuple[str, ...]:
        return tuple(self.pairs)


_MLR = "Yu et al., NeurIPS 2022"
_DOPAMINE = "Dopamine's configuration for Atari-100k (Agarwal et al., 2021)"
SUITES = ("dmcontrol", "atari")

# The suite whose methods a toy has, if there are small versions of them, and a user's environment, by its agent.
TOYS = {"toy/reach": "dmcontrol", "toy/catch": "atari"}
OWN = {"sac": "dmcontrol", "drqv2": "dmcontrol", "rainbow": "atari"}


def _everywhere(pair: Pair) -> dict[str, Pair]:
    return dict.fromkeys(SUITES, pair)


METHODS: dict[str, Method] = {
    "mlr": Method(_everywhere(Pair(None, "mlr")), _MLR),
    "baseline": Method(_everywhere(Pair(None)), f"{_MLR}: the agent alone, with augmentation"),
    "curl": Method(
        {"dmcontrol": Pair("curl_sac", "curl"), "atari": Pair("curl_rainbow", "curl")},
        "Laskin et al., ICML 2020; its released code",
    ),
    "curl64": Method(
        {"dmcontrol": Pair(None, "curl")}, "CURL on the Baseline's network, as the code released with MLR has it"
    ),
    "sac_ae": Method({"dmcontrol": Pair("sac_pixel", "autoencoder")}, "Yarats et al., AAAI 2021; its released code"),
    "sac_pixel": Method({"dmcontrol": Pair("sac_pixel")}, "SAC+AE without its decoder, as its authors ran it"),
    "spr": Method(
        {"dmcontrol": Pair("playvirtual_sac", "spr"), "atari": Pair("spr_rainbow", "spr")},
        "Schwarzer et al., ICLR 2021; its released code, and on DMControl that of PlayVirtual (mode fp)",
    ),
    "spr_dropout": Method({"atari": Pair("spr_dropout", "spr")}, "SPR without augmentation; its released code"),
    "spr_mean": Method(
        {"dmcontrol": Pair("spr_mean_sac", "spr")}, "the other SPR in PlayVirtual's repository (spr_sac)"
    ),
    "playvirtual": Method(
        {"dmcontrol": Pair("playvirtual_sac", "playvirtual"), "atari": Pair(None, "playvirtual")},
        "Yu et al., NeurIPS 2021; its released code",
    ),
    "mooss": Method({"dmcontrol": Pair("mooss_sac", "mooss")}, "Sun et al., WACV 2025; its released code"),
    "drqv2": Method({"dmcontrol": Pair("drqv2")}, "Yarats et al., ICLR 2022; its released code"),
    "drqv2-100k": Method({"dmcontrol": Pair("drqv2-100k")}, "ours: DrQ-v2 with less noise and more updates"),
    "der": Method({"atari": Pair("der")}, f"van Hasselt et al., 2019; {_DOPAMINE}"),
    "otr": Method({"atari": Pair("otr")}, f"Kielak, 2020; {_DOPAMINE}"),
    "drq": Method(
        {"dmcontrol": Pair("drq_sac"), "atari": Pair("drq")},
        f"Yarats et al., ICLR 2021; its released code; {_DOPAMINE}",
    ),
    "drq_eps": Method({"atari": Pair("drq_eps")}, f"Agarwal et al., 2021; {_DOPAMINE}"),
}

# Rows of the paper's tables that this project quotes but cannot run.
QUOTED = ("PlaNet", "Dreamer", "SLAC", "SimPLe")


def name_of(recipe: str, agent: str | None, kind: str, objective: str | None) -> str:
    """The published name of this pair on a recipe's suite, or "agent+objective". `kind`: the name of the suite's own agent."""
    suite = TOYS.get(recipe, recipe.partition("/")[0])
    suite = OWN.get(kind, suite) if suite == "gym" else suite
    for name, method in METHODS.items():
        pairs = [method.pairs.get(suite)] if suite in SUITES else method.pairs.values()
        if Pair(agent, objective) in pairs:
            return name
    return "+".join(filter(None, (agent or kind, objective)))
