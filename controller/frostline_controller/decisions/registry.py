"""The freeze policies by name: the built-in ones, and those that entry points of the group `frostline.freeze_policies` add."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points

from frostline_controller.decisions.inputs import FreezeInputs, Proposal
from frostline_controller.decisions.policies import (
    gradient_argmin,
    gradient_change,
    information_per_flop,
    manual,
    operator,
    plasticity,
    replay,
    schedule,
    stairs,
)

GROUP = "frostline.freeze_policies"

PACE = frozenset({"warmup", "cooldown", "min_active", "rearm", "patience", "unfreeze", "absolute", "cap_interval", "baseline",
                  "least_move"})  # fmt: skip
"""Rails that doubt a measurement or spread freezes over time: a person's explicit word is not subject to them."""

BY_OUTPUTS = frozenset({"warmup", "absolute", "cap_interval"})
"""Rails that stand in for evidence of how far blocks have settled: a policy that measures it goes as early as it shows."""

EVERYTHING = PACE | {"nan", "cap_total", "last_blocks", "quarantine", "guard"}
"""Replay follows what another run did under its own rails, to the bit."""


@dataclass(frozen=True)
class Policy:
    """A named policy. propose: a pure function of the inputs. exempt: rails that do not apply to it."""

    name: str
    propose: Callable[[FreezeInputs], Proposal]
    exempt: frozenset[str] = frozenset()


BUILT_IN = {
    policy.name: policy
    for policy in (
        Policy("gradient_argmin", gradient_argmin.propose),
        Policy("schedule", schedule.propose),
        Policy("gradient_change", gradient_change.propose),
        Policy("information_per_flop", information_per_flop.propose),
        Policy("plasticity", plasticity.propose, BY_OUTPUTS),
        Policy("stairs", stairs.propose, PACE),
        Policy("manual", manual.propose, PACE),
        Policy("replay", replay.propose, EVERYTHING),
    )
}

OPERATOR = Policy(operator.NAME, operator.propose, PACE)
"""Decides instead of the job's policy where a command asks for a freeze point; no job can name it."""


def policy_names() -> list[str]:
    """All names that a job may give in freeze.policy.name."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def find_policy(name: str) -> Policy:
    """The policy of that name.

    An entry point names either a function `propose(inputs) -> Proposal` or a `Policy`. Raises ValueError for unknown names.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in entry_points(group=GROUP, name=name):
        loaded = point.load()
        return loaded if isinstance(loaded, Policy) else Policy(name, loaded)
    raise ValueError(f"freeze.policy.name is {name!r}; known are {', '.join(policy_names())}")
