"""Statistics by hand, and a run in which every decision takes effect; shared by the tests of freezing."""

from collections.abc import Callable
from dataclasses import replace

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job.freezing import ElasticSection, FreezeSection, PolicySection, RailsSection
from frostline_contract.job.training import EvaluationSection
from frostline_contract.lineage import Cuts, LineageStart
from frostline_contract.plan import Decision
from frostline_contract.statistics import GuardReading, IntervalStatistics
from frostline_controller.decisions.decide import decide
from frostline_controller.decisions.inputs import FreezeInputs
from frostline_controller.decisions.rails import RAIL_NAMES

INTERVAL, LAG = 10, 3


def entry(
    number: int,
    blocks: list[float],
    freeze_point: int = 0,
    lineage: int = 0,
    guard: list[float] | None = None,
    embedding: float = 9.0,
    head: float = 7.0,
    **fields,
) -> IntervalStatistics:
    """Statistics of interval `number`; `blocks` holds the gradient norm of each block."""
    norms = (embedding, *blocks, head)
    values = {
        "number": number,
        "lineage": lineage,
        "first_step": (number - 1) * INTERVAL + 1,
        "last_step": number * INTERVAL,
        "freeze_point": freeze_point,
        "unit_gradient_norms": norms,
        "unit_parameters": (1,) * len(norms),
        "unit_forward_flops": (0, *(1000,) * len(blocks), 100),
        "learning_rate": 1e-3,
        "learning_rate_peak": 1e-3,
        "loss_mean": 1.0,
        "accepted_steps": INTERVAL,
        "guard": GuardReading(losses=tuple(guard)) if guard is not None else None,
    }
    return IntervalStatistics(**{**values, **fields})


def inputs_of(
    *statistics: IntervalStatistics,
    decisions: tuple[Decision, ...] = (),
    policy: dict | None = None,
    rails: dict | None = None,
    only: tuple[str, ...] | None = None,
    total_steps: int = 400,
    num_units: int | None = None,
    **more,
) -> FreezeInputs:
    """Return the inputs of a decision on these statistics. only: the rails that stay on (None: as `rails` has them)."""
    rails = dict(rails or {})
    if only is not None:
        rails["off"] = tuple(name for name in RAIL_NAMES if name not in only)
    return FreezeInputs(
        num_units=num_units or len(statistics[0].unit_gradient_norms),
        statistics=statistics,
        decisions=decisions,
        freeze=FreezeSection(policy=PolicySection(**(policy or {})), rails=RailsSection(**rails)),
        elastic=more.pop("elastic", ElasticSection()),
        evaluation=more.pop("evaluation", EvaluationSection()),
        calendar=DecisionCalendar(INTERVAL, LAG, total_steps),
        **more,
    )


def decision(number: int, freeze_point: int, kind: str, lineage: int = 0, **fields) -> Decision:
    return Decision(
        number=number,
        interval=number,
        effective_step=number * INTERVAL + LAG,
        freeze_point=freeze_point,
        lineage=lineage,
        decided_in=0 if kind == "rollback" else lineage,
        kind=kind,
        policy="gradient_argmin",
        **fields,
    )


def simulate(
    template: FreezeInputs,
    intervals: int,
    measure: Callable[[int, int, int], IntervalStatistics],
    voided: Callable[[int, int], bool] = lambda lineage, number: False,
) -> tuple[list[IntervalStatistics], list[Decision]]:
    """Simulate a run: every decision takes effect at its step; a rollback goes back, and its intervals are computed again.

    measure(number, lineage, freeze_point) gives the statistics of an interval; voided(lineage, number) is true for decisions
    that come too late. Returns all statistics and decisions, those of cut lineages too, in the order in which they were made.
    """
    statistics: list[IntervalStatistics] = []
    decisions: list[Decision] = []
    cuts = Cuts()
    number, lineage, freeze_point = 1, 0, 0
    while number <= intervals:
        statistics.append(measure(number, lineage, freeze_point))
        alive = tuple(one for one in statistics if cuts.survives(one.lineage, one.last_step))
        made = decide(replace(template, statistics=alive, decisions=tuple(decisions)))
        made = made.model_copy(update={"void": voided(lineage, number)})
        decisions.append(made)
        if made.void:
            number += 1
        elif made.kind == "rollback":
            lineage, freeze_point = made.lineage, made.freeze_point
            cuts = Cuts((*cuts.starts, LineageStart(lineage=lineage, starts_at_step=made.rollback_to_step, kind="rollback")))
            number = template.calendar.due_before(made.rollback_to_step + 1) + 1
        else:
            freeze_point = made.freeze_point
            number += 1
    return statistics, decisions
