"""Planning: who computes what, and what a step will cost. Pure: no clock, no I/O, no torch (docs/design.md 7)."""

from frostline_controller.planner.cost import StepCost, placement_cost
from frostline_controller.planner.inputs import MemberInfo, PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.verdict import should_reshape

__all__ = ["MemberInfo", "PlanInputs", "PlannedPlacement", "StepCost", "make_plan", "placement_cost", "should_reshape"]
