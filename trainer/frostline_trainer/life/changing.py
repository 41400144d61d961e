"""Changes of the numerics inside a generation: a freeze rebuilds in place, a rollback brings an old state back in place."""

import time
from collections.abc import Callable

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.phases import Phase
from frostline_contract.plan import Decision
from frostline_trainer.engine.context import RunContext
from frostline_trainer.life.entering import Entered, Entrance
from frostline_trainer.life.saving import Saving
from frostline_trainer.training.caching import CacheUse
from frostline_trainer.training.run_state import RunState


class Changes:
    """phase: called with each phase as it is entered. report(kind, reason, seconds): an event."""

    def __init__(self, context: RunContext, state: RunState, saving: Saving, entrance: Entrance, caching: CacheUse,
                 calendar: DecisionCalendar, phase: Callable[[Phase], None], report: Callable[..., None]) -> None:  # fmt: skip
        self._context, self._state, self._saving, self._entrance = context, state, saving, entrance
        self._caching, self._calendar, self._phase, self._report = caching, calendar, phase, report

    def apply(self, entered: Entered, decision: Decision) -> None:
        """The freeze point moved: stage, schedule and optimizer are rebuilt; the reshape may follow."""
        self._phase(Phase.FREEZE)
        self._entrance.extend_chain(decision.freeze_point)
        self._rebuild(entered, decision.freeze_point)

    def roll_back(self, entered: Entered, decision: Decision) -> None:
        """Weights, moments, cursor and freeze point go back together (docs/protocols.md 6.6)."""
        started = time.perf_counter()
        self._phase(Phase.ROLLBACK)
        units = entered.plan.needs(entered.generation.worker_id)
        self._context.holdings.tear(units)
        restored = self._saving.restore(entered, decision.rollback_to_step, self._state)
        restored.open_lineage(decision, self._calendar)
        restored.mark_restored(entered.plan.generation)
        self._state.take(restored, keep_unacknowledged=True)
        self._context.holdings.settle(units, self._state.tag)
        entered.generation.rewind(self._state.data_origin)
        self._rebuild(entered, decision.freeze_point)
        # From here on the newest manifest is the new lineage's (docs/protocols.md 6.6).
        self._saving.checkpoint(entered, self._state, before_freeze=True)
        self._report("guard", f"rolled back to step {restored.step}: {decision.reason}", time.perf_counter() - started)

    def _rebuild(self, entered: Entered, freeze_point: int) -> None:
        entered.generation.freeze_to(freeze_point, tuple(self._state.codec_chain), self._caching.round_trip)
        self._caching.connect(entered.generation, self._state)
