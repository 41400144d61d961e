"""The planner's time for one plan: 200 units on up to 1,024 devices."""

import time

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.analytic import analytic_profiles
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.search import make_plan
from tests.benchmarks.measuring import Effort, Report, Row, Spread
from tests.unit.controller.planner_cases import cluster_members

REPEATS = 5
GOAL_SECONDS = 1.0
LINK = LinkProfile(
    latency_seconds=2e-5, bandwidth_bytes_per_second=25e9, reduce_latency_seconds=5e-5, reduce_bandwidth_bytes_per_second=2e10
)


def plan_speed(effort: Effort) -> Report:
    """Measure the planner's seconds for several kinds of request."""
    questions = [(devices, leaves, {}) for devices in (16, 128, 1024) for leaves in (64, 1024)]
    questions += [(1024, leaves, extra) for leaves in (64, 1024) for extra in ({"objective": "cost"}, {"virtual_stages": 2})]
    return Report(
        "The planner on 200 units and 1,024 devices",
        "`make_plan`, which `frostline plan` and the controller ask, on a transformer of 198 blocks whose unit times come from "
        "FLOPs: stage bounds, degrees, schedule, dealing and the predicted step of the best shape. Seconds by the clock, one "
        "process; starting the command's Python comes on top.",
        [_measure(devices, leaves, extra, effort.pairs(REPEATS)) for devices, leaves, extra in questions],
    )


def _measure(devices: int, leaves: int, placement: dict[str, object], repeats: int) -> Row:
    units = analytic_profiles(198, 2048, 2048, 1, 2e14, 50_000, bytes_per_value=2)
    inputs = PlanInputs(
        units=units,
        micro_batch_size=1,
        num_microbatches=1024,
        reduction_leaves=leaves,
        freeze_point=0,
        members=cluster_members(devices // 8, 8, 80 << 30),
        link=LINK,
        placement=PlacementSection(workers=devices, **placement),
    )
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        planned = make_plan(inputs)
        seconds.append(time.perf_counter() - started)
    chosen = planned.placement
    extra = "".join(f", {name} {value}" for name, value in placement.items())
    return Row(f"{devices} devices, {leaves} leaves{extra}", "seconds a plan", "s", Spread.of(seconds), at_most=GOAL_SECONDS,
               note=f"pp {chosen.pp_degree} x dp {chosen.dp_degree}, {chosen.schedule}")  # fmt: skip
