"""Pictures of measured steps below the same steps as planned: each rank's computations on one axis of time."""

from collections import Counter
from collections.abc import Sequence

from frostline_contract.job import parse_job
from frostline_contract.mesh import in_words
from frostline_contract.operations import Kind, Operation
from frostline_contract.plan import Plan
from frostline_contract.schedule_figures import Timed
from frostline_contract.statistics import LinkProfile, StepTrace
from frostline_controller.planner.inputs import MemberInfo, PlanInputs, with_numerics_of
from frostline_controller.planner.program_picture import MOST_BOXES, Panel, step_picture
from frostline_controller.planner.quota import quota_of
from frostline_controller.planner.timed_step import timed_step
from frostline_controller.report.charts import TIMES, Chart
from frostline_controller.report.data import RunData

MOST_PICTURES = 3
"""The largest number of pictures: of the generations and freeze points that computed the most steps."""


def step_charts(run: RunData) -> list[Chart]:
    """Draw the newest traced step of each pair of generation and freeze point, for the pairs with the most steps, in the run's
    order."""
    computed = Counter((record.generation, record.freeze_point) for record in run.records)
    newest = {(trace.generation, trace.freeze_point): trace.step for trace in run.traces}
    shown = sorted(newest, key=lambda key: (-computed[key], newest[key]))[:MOST_PICTURES]
    charts = [_chart(run, *key, newest[key]) for key in sorted(shown, key=lambda key: newest[key])]
    return [chart for chart in charts if chart is not None]


def _chart(run: RunData, generation: str, freeze_point: int, step: int) -> Chart | None:
    """None where a rank's trace is missing, or the step has too many operations for a picture."""
    plan, traces = run.plan_of(generation), [one for one in run.traces if (one.generation, one.step) == (generation, step)]
    if plan is None or len({one.pp_rank for one in traces}) != plan.placement.pp_degree:
        return None
    ran = Panel(_measured(traces), "as it ran")
    planned = _planned(run, plan, freeze_point)
    panels = [Panel(planned, "as planned"), ran] if planned else [ran]
    if sum(len(panel.timed) for panel in panels) > MOST_BOXES:
        return None
    placement = plan.placement
    title = f"Step {step}: {in_words(placement.degrees, TIMES)}, {placement.schedule}, {freeze_point} units frozen"
    caption = f"Computations of the first replica's ranks, generation {generation}: {_in_words(ran)}."
    if planned:
        caption += (
            f" Planned from the run's profile, without what workers of one machine take from each other: {_in_words(panels[0])}."
        )
    return Chart(f"step-{step}", title, caption, step_picture(panels, title))


def _measured(traces: Sequence[StepTrace]) -> list[Timed]:
    """Return the measured operations, with times from the first begin on any rank."""
    begin = min(one.start for trace in traces for one in trace.operations)
    return [
        Timed(trace.pp_rank, Operation(Kind(one.kind), one.stage, one.micro_batch, one.slice), one.start - begin, one.end - begin)
        for trace in traces
        for one in trace.operations
    ]


def _planned(run: RunData, plan: Plan, freeze_point: int) -> list[Timed]:
    """Return the planned operations of the step; empty where the run has no profile, or one of another model."""
    profile, placement = run.profile, plan.placement
    if profile is None or len(profile.units) != run.num_units or not run.job:
        return []
    job = parse_job(run.job)
    cost = dict.fromkeys(range(freeze_point), profile.prefix_cost)
    units = tuple(
        unit.model_copy(update={"forward_seconds": unit.forward_seconds * cost.get(number, 1.0)})
        for number, unit in enumerate(profile.units)
    )
    inputs = PlanInputs(
        units=units,
        micro_batch_size=profile.micro_batch_size,
        num_microbatches=job.training.num_microbatches,
        reduction_leaves=job.training.reduction_leaves,
        freeze_point=freeze_point,
        members=tuple(MemberInfo(worker) for worker in placement.workers),
        link=profile.link or LinkProfile(),
        cache=profile.cache,
        placement=job.placement,
        quota=quota_of(job, profile.quota_period_seconds),
    )
    return timed_step(placement, with_numerics_of(job, inputs), replica=0)


def _in_words(panel: Panel) -> str:
    busy = [panel.busy(pp_rank) / panel.seconds for pp_rank in range(panel.ranks)]
    return f"{panel.seconds * 1e3:.3g} ms, ranks busy for {min(busy):.0%} to {max(busy):.0%} of it"
