"""The comparison of measured memory with `placement.worker_memory_bytes`: reported in the status, and by one event per
generation."""

from frostline_contract.plan import GenerationId
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore

KIND = "memory_over_cap"


def over_cap(facts: RunFacts) -> str:
    """Return that a member of the running plan holds more than it may, with figures and remedy; empty where none does."""
    cap, plan = facts.job.placement.worker_memory_bytes, facts.current
    most = facts.memory.most_tensors(plan)
    if cap is None or plan is None or most is None or most.bytes <= cap:
        return ""
    return (
        f"{facts.members.name_of(most.worker_id)} holds {most.bytes:,} bytes, and placement.worker_memory_bytes is {cap:,} "
        f"(planned {plan.placement.predicted_peak_bytes:,}); lower training.micro_batch_size, use more workers, or raise "
        "placement.worker_memory_bytes"
    )


class MemoryCap:
    """Writes the event of a generation over the limit. Call `advance` in every round."""

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
        self._facts, self._outbox = facts, outbox
        announced = store.events.newest.get(KIND)
        self._announced = str(announced["generation"]) if announced is not None else ""

    async def advance(self) -> None:
        """Write the event of a generation once, also over restarts of the controller."""
        plan: GenerationId | None = self._facts.current.generation if self._facts.current is not None else None
        if plan is not None and str(plan) != self._announced and (why := over_cap(self._facts)):
            self._announced = str(plan)
            await self._outbox.event(KIND, why)
