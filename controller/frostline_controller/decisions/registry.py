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
"""Rails that question measurements or spread freezes over time. They do not apply to a person's explicit freeze points."""

BY_OUTPUTS = frozenset({"warmup", "absolute", "cap_interval"})
"""Rails that approximate how far blocks have settled. They do not apply to a policy that measures this itself."""

EVERYTHING = PACE | {"nan", "cap_total", "last_blocks", "quarantine", "guard"}
"""All rails. None applies to `replay`, which repeats exactly what another run did under its own rails."""


@dataclass(frozen=True)
class Policy:
    """A named policy.

    Attributes:
        propose: a pure function of the inputs.
        exempt: names of the rails that do not apply to the policy.
    """

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
"""The policy that replaces the job's for one decision where a command asks for a freeze point. A job cannot name it."""


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
