"""The run state that a plan's participants share: every value arrives, also one that is no finite number."""

import math
from pathlib import Path
from types import SimpleNamespace

from frostline_contract.plan import GenerationId
from frostline_contract.statistics import GuardReading
from frostline_trainer.generations.entering import Entrance
from frostline_trainer.step.run_state import RunState
from frostline_trainer.transport.collectives import Group
from tests.unit.trainer.group_threads import in_group
from tests.unit.trainer.test_engine_notices import record, statistics


def state_with_a_refused_step() -> RunState:
    """A state in which a step was refused, and whose guard split was scored with weights that had run away."""
    reading = GuardReading(losses=(math.nan, math.inf, 0.1), metrics={"loss": math.nan})
    refused = {"loss": math.nan, "gradient_norm": math.inf, "unit_gradient_norms": (math.inf, 0.3), "refused": True}
    return RunState(
        step=5,
        vote_generation=GenerationId(incarnation=1, counter=1),
        refused_steps=1,
        best_guard_loss=math.inf,
        unconfirmed=record(5).model_copy(update=refused),
        records=[record(4).model_copy(update=refused)],
        statistics=[statistics(1).model_copy(update={"guard": reading, "loss_mean": math.nan})],
    )


def test_a_participant_reads_the_state_of_a_run_that_has_refused_a_step() -> None:
    plan = SimpleNamespace(places={"w0": 0, "w1": 1}, state_source="w0", start_tag=None)

    def take_part(group: Group) -> RunState:
        state = state_with_a_refused_step() if group.index == 0 else RunState()
        Entrance(f"w{group.index}", None, state, Path())._share_state(plan, group)  # type: ignore[arg-type]
        return state

    sent, taken = in_group(2, take_part)
    assert repr(taken.dump()) == repr(sent.dump()), "NaN differs from itself, its text does not"
    assert taken.best_guard_loss == math.inf and math.isnan(taken.records[0].loss)
    assert taken.unconfirmed is not None and taken.unconfirmed.gradient_norm == math.inf
    assert taken.statistics[0].guard is not None and math.isnan(taken.statistics[0].guard.losses[0])
