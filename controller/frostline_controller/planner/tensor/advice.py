"""Advice on tensor parallelism and sharded state for a job on its workers, as `frostline plan` and `frostline simulate` show it.

It is advice: a run's plans have the groups that its job asks for or leaves open, and numbers that are fixed at its start.
"""

from dataclasses import asdict, dataclass
from typing import Any

from frostline_contract.job import Job
from frostline_contract.mesh import in_words
from frostline_contract.sharding import NONE
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.shared_as_needed import settled
from frostline_controller.planner.tensor.choice import SharedPlan, SharingChoice, choose_sharing
from frostline_controller.planner.tensor.largest import Room, largest_models
from frostline_controller.planner.tensor.sharing import Sharing

GIB = 2**30


@dataclass(frozen=True)
class SharingAdvice:
    """The advice for one number of workers.

    Attributes:
        job: the job to be planned.
        choice: the best way of sharing.
        rooms: the largest model of each family of shapes; none where the workers' memory is not known.
        weight_bytes: bytes of one parameter.
    """

    job: Job
    choice: SharingChoice
    rooms: tuple[Room, ...]
    weight_bytes: int

    def lines(self) -> list[str]:
        """Return the advice as lines of text; none where there is no advice."""
        best, found = self.choice.best, list[str]()
        if best is not None:
            found.append(f"with tensors or state shared out: {self._best_words(best)}")
            found += [f"  {words}" for words in self._obstacles(best.sharing, best.planned.placement.dp_degree)]
        if self.rooms:
            head = f"{'largest model that fits':<38}{'blocks':>8}{'parameters':>12}  shape"
            found += [""] * bool(found) + [head, *map(self._room_words, self.rooms)]
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the advice as plain data."""
        best = self.choice.best
        return {
            "best": self._best_json(best) if best is not None else None,
            "tried": self.choice.tried,
            "largest": [
                {
                    "family": room.family,
                    "blocks": room.blocks,
                    "parameters": room.parameter_bytes // self.weight_bytes,
                    "degrees": room.degrees,
                    **asdict(room.sharing),
                }
                for room in self.rooms
            ],
        }

    def _best_words(self, best: SharedPlan) -> str:
        cost, plain = best.planned.cost, self.choice.plain
        against = (
            f"{plain.seconds_per_sample / best.seconds_per_sample:.2f}x as fast" if plain is not None else "nothing else fits"
        )
        return (
            f"{_shape(best.planned.placement.degrees, best.sharing)}, {best.planned.placement.schedule}, {best.workers} workers: "
            f"a step of {cost.total_seconds:.3g} s, {against}, {cost.peak_bytes / GIB:.3g} GiB a worker"
        )

    def _best_json(self, best: SharedPlan) -> dict[str, Any]:
        placement, cost = best.planned.placement, best.planned.cost
        return {
            "degrees": best.degrees,
            "shard": best.sharing.shard,
            "schedule": placement.schedule,
            "stage_bounds": list(placement.stage_bounds),
            "workers": best.workers,
            "step_seconds": cost.total_seconds,
            "parts": dict(cost.parts),
            "peak_bytes": cost.peak_bytes,
            "obstacles": self._obstacles(best.sharing, placement.dp_degree),
        }

    def _obstacles(self, sharing: Sharing, replicas: int) -> list[str]:
        """Return why this run cannot share in that way: numbers that are fixed at a run's start."""
        training, tiles = self.job.training, self.job.training.tensor_tiles
        least = {
            "tensor_tiles.inner": (tiles.inner, sharing.columns),
            "tensor_tiles.hidden": (tiles.hidden, sharing.depth),
            "tensor_tiles.rows": (tiles.rows, sharing.columns if sharing.rows_split else 1),
            "state_ranges": (training.state_ranges, replicas if sharing.shard != NONE else 1),
        }
        found = [f"in a new run: training.{name} {needed} or more" for name, (given, needed) in least.items() if given < needed]
        if sharing.depth > 1 and tiles.vocabulary:
            found.append("in a new run: training.tensor_tiles.vocabulary false")
        if sharing.depth > 1 and tiles.rows > 1:
            found.append("in a new run: training.tensor_tiles.rows 1")
        return found

    def _room_words(self, room: Room) -> str:
        shape = _shape(room.degrees, room.sharing) if room.blocks else "not one block"
        parameters = f"{room.parameter_bytes / self.weight_bytes / 1e9:,.3g} G"
        return f"{room.family:<38}{room.blocks:>8,}{parameters:>12}  {shape}"


def advise_sharing(job: Job, inputs: PlanInputs, weight_bytes: int) -> SharingAdvice:
    """Return the advice for a job. weight_bytes: bytes of one parameter."""
    plain = settled(inputs)
    return SharingAdvice(job, choose_sharing(plain), largest_models(plain), weight_bytes)


def _shape(degrees: dict[str, int], sharing: Sharing) -> str:
    """Return the way of sharing and the degrees in words: "tp 4, shard use, pp 2 x dp 2"."""
    return ", ".join(filter(None, [sharing.words, in_words(degrees)]))
