"""Freezing: policies propose, rails limit, the guard takes back; `decide` is what the controller calls."""

from frostline_controller.freezing.decide import check_freezing, decide
from frostline_controller.freezing.history import surviving_decisions
from frostline_controller.freezing.inputs import FreezeInputs, Proposal
from frostline_controller.freezing.registry import Policy, policy_names

__all__ = [
    "FreezeInputs",
    "Policy",
    "Proposal",
    "check_freezing",
    "decide",
    "policy_names",
    "surviving_decisions",
]
