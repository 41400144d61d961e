"""Silent corruption, as a planned fault: a bit of a weight, a moment, cached values, activations or gradients."""

from collections.abc import Callable

import torch

from frostline_contract.job.cluster import Fault
from frostline_contract.plan import Plan
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.flaw import flip_first
from frostline_trainer.training.caching import CacheUse
from frostline_trainer.training.run_state import RunState


class BitFlips:
    """plan(): that this worker is a member of."""

    def __init__(
        self, worker_id: str, context: RunContext, state: RunState, caching: CacheUse, plan: Callable[[], Plan | None]
    ) -> None:
        self._worker_id, self._context, self._state, self._caching, self._plan = worker_id, context, state, caching, plan

    def flip(self, fault: Fault, step: int) -> None:
        """Change the last unit that this worker owns; or, for `cached_value`, all that it stores in the cache in `step`; or what
        it computes in `step` and, where the fault lasts, ever after.
        """
        if fault.what == "cached_value":
            if self._caching.cache is not None:
                self._caching.cache.before_fill = lambda rows: flipped(rows) if self._state.step < step else rows
            return
        if fault.what in ("activation", "gradient"):
            self._context.flaw.what, self._context.flaw.lasting = fault.what, fault.lasting
            return
        plan = self._plan()
        assert plan is not None
        unit = plan.placement.units_of(self._worker_id)[-1]
        name, parameter = next(iter(self._context.cut.units[unit].named_parameters()))
        moments = self._context.moments.get((unit, name), {})
        flip_first(parameter.detach() if fault.what == "weight" else next(one for one in moments.values() if one.ndim > 0))


def flipped(rows: torch.Tensor) -> torch.Tensor:
    """A copy in which every row has another bit in its first element."""
    copy = rows.clone()
    for row in copy:
        flip_first(row)
    return copy
