"""Methods: published names for pairs of an agent's values and an objective."""

from typing import NamedTuple


class Method(NamedTuple):
    """A published pair, on the suites that it was published for."""

    agent: str | None  # the name of the agent's values; None: the suite's own agent
    objective: str | None
    suites: tuple[str, ...]
    source: str


_ALL = ("dmcontrol", "atari", "toy", "gym")
_DOPAMINE = "Dopamine's configuration for Atari-100k (Agarwal et al., 2021)"

METHODS: dict[str, Method] = {
    "mlr": Method(None, "mlr", _ALL, "Yu et al., NeurIPS 2022"),
    "baseline": Method(None, None, _ALL, "Yu et al., NeurIPS 2022: the agent alone, with augmentation"),
    "curl": Method("curl_sac", "curl", ("dmcontrol",), "Laskin et al., ICML 2020; its released code"),
    "der": Method("der", None, ("atari",), f"van Hasselt et al., 2019; {_DOPAMINE}"),
    "otr": Method("otr", None, ("atari",), f"Kielak, 2020; {_DOPAMINE}"),
    "drq": Method("drq", None, ("atari",), f"Yarats et al., 2021; {_DOPAMINE}"),
    "drq_eps": Method("drq_eps", None, ("atari",), f"Agarwal et al., 2021; {_DOPAMINE}"),
}

# Rows of the paper's tables that this project quotes and does not run.
QUOTED = ("PlaNet", "Dreamer", "SLAC", "SimPLe")


def name_of(agent: str | None, kind: str, objective: str | None) -> str:
    """The method with this pair, or a name made of both. `kind` stands for the suite's own agent."""
    for name, method in METHODS.items():
        if (method.agent, method.objective) == (agent, objective):
            return name
    return "+".join(filter(None, (agent or kind, objective)))
