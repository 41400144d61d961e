"""The registry of pipeline schedules. A schedule is data: the order of each pipeline rank's computations, and its costs.

A schedule moves no data and changes no bit: gradients are summed in the tree's order whatever the order of computation. The
trainer lowers a schedule to programs and checks them (`frostline_trainer.step.programs`); the planner reads a schedule's
figures. A new schedule is one `Schedule` in BUILT_IN, or an entry point of the group `frostline.schedules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points

from frostline_contract.operations import Kind, Operation, Order, typed
from frostline_contract.schedule_figures import Figures, counted_figures, counted_slices_in_flight
from frostline_contract.shape import stages_of
from frostline_contract.zero_bubble import H1, H2, V_HALF, V_MIN, V_ZERO, ZeroBubble

ENTRY_POINT_GROUP = "frostline.schedules"


@dataclass(frozen=True)
class Schedule:
    """An order of computation with its figures for the planner.

    Attributes:
        order: the order of each pipeline rank.
        figures: None where the schedule brings none; then they are counted from its operations.
        takes_slices: whether the order has a fifth argument, the slices of each micro-batch.
        takes_freezing: whether the order has a sixth argument, the number of the first stage that learns. From an order without
            it the operations that frozen stages do not need are removed.
        folded: each rank has two stages, which lie in a V: the first and the last stage are on the same rank. Allowed for
            built-in schedules alone, since who holds which units must not depend on what is installed.
        splits: backwards are in two parts, which together may take longer than one.
    """

    order: Order
    figures: Figures | None = None
    takes_slices: bool = False
    takes_freezing: bool = False
    folded: bool = False
    splits: bool = False

    @property
    def known_figures(self) -> Figures:
        """The schedule's own figures, or counted ones."""
        return self.figures or counted_figures(self.operations)

    def in_flight(self, pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int = 1) -> float:
        """Micro-batches (also fractions of them) whose activations one stage of the pipeline rank holds at once.

        Args:
            virtual_stages: stages of each pipeline rank.
            num_microbatches: of a step.
            slices: of each micro-batch; 1: it is whole.
        """
        figures, degrees = self.known_figures, (pp_rank, pp_degree, virtual_stages, num_microbatches)
        if slices == 1:
            return figures.in_flight(*degrees)
        if figures.slices_in_flight is not None:
            return figures.slices_in_flight(*degrees, slices) / slices
        return counted_slices_in_flight(self.operations, *degrees, slices) / slices

    def operations(
        self, pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int = 1, first_learning: int = 0
    ) -> list[Operation]:
        """The order of one pipeline rank, without the operations that frozen stages do not need.

        Args:
            virtual_stages: stages of each pipeline rank.
            num_microbatches: of a step.
            slices: of each micro-batch; 1: it is whole.
            first_learning: number of the first stage that learns; the stages before it are frozen.

        Raises:
            ValueError: an element is no compute operation, or the schedule does not support slices.
        """
        if slices > 1 and not self.takes_slices:
            raise ValueError(f"placement.slices is {slices} and the schedule takes none (Schedule.takes_slices); set it to 1")
        degrees: tuple[int, ...] = (pp_rank, pp_degree, virtual_stages, num_microbatches)
        if self.takes_freezing:
            degrees += (slices, first_learning)
        elif slices > 1:
            degrees += (slices,)
        operations = [typed(given) for given in self.order(*degrees)]
        return [one for one in operations if one.stage >= first_learning or (one.kind is Kind.FORWARD and one.slice == 0)]


def gpipe(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int = 1) -> list[Operation]:
    """GPipe: all forwards, then all backwards (Huang et al. 2019). Arguments as in `Schedule.operations`.

    With slices it is TeraPipe's order (Li et al. 2021): the backwards of a micro-batch's slices run from the last slice to the
    first. With virtual stages the rank computes one stage after the other, and the backwards in reverse.
    """
    stages = stages_of(pp_rank, pp_degree, virtual_stages)
    ascending, descending = _parts(num_microbatches, slices)
    forwards = [Operation(Kind.FORWARD, stage, *part) for stage in stages for part in ascending]
    backwards = [Operation(Kind.BACKWARD, stage, *part) for stage in reversed(stages) for part in descending]
    return forwards + backwards


def one_forward_one_backward(
    pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int = 1
) -> list[Operation]:
    """1F1B (PipeDream-flush, Narayanan et al. 2021), with slices Seq1F1B (Sun et al. 2024): warm-up, steady state, cool-down.

    Each rank has one stage. The first backward of a micro-batch is that of its last slice, so the warm-up has one more forward
    for each other slice. Arguments as in `Schedule.operations`.
    """
    if virtual_stages != 1:
        raise ValueError(f"schedule 1f1b runs one stage a rank, virtual_stages is {virtual_stages}; use interleaved_1f1b")
    ascending, descending = _parts(num_microbatches, slices)
    forwards = [Operation(Kind.FORWARD, pp_rank, *part) for part in ascending]
    backwards = [Operation(Kind.BACKWARD, pp_rank, *part) for part in descending]
    return _alternating(forwards, backwards, warmup=pp_degree - 1 - pp_rank + slices - 1)


def interleaved(pp_rank: int, pp_degree: int, virtual_stages: int, num_microbatches: int, slices: int = 1) -> list[Operation]:
    """Interleaved 1F1B (Narayanan et al. 2021): each rank alternates between its stages, in rounds of pp_degree slices.

    The last round may hold fewer slices than pp_degree, so that replicas may run any number of micro-batches. The order is then
    made for whole rounds, and the operations of slices that do not exist are removed. (An order made for the short round itself
    can deadlock, since the ranks' warm-ups would not match.) The last rank's warm-up is long enough for each backward to come
    after its forward. Arguments as in `Schedule.operations`.
    """
    rounded = -(-num_microbatches // pp_degree) * pp_degree
    stages = stages_of(pp_rank, pp_degree, virtual_stages)
    ascending, descending = _parts(rounded, slices)
    forwards = _rounds(Kind.FORWARD, stages, pp_degree, ascending)
    backwards = _rounds(Kind.BACKWARD, stages[::-1], pp_degree, descending)
    place = {operation[1:]: number for number, operation in enumerate(forwards)}
    least = max(place[operation[1:]] - number for number, operation in enumerate(backwards))
    operations = _alternating(forwards, backwards, warmup=least + (pp_degree - pp_rank - 1) * 2)
    return [operation for operation in operations if operation.micro_batch < num_microbatches]


Part = tuple[int, int]
"""(micro-batch, slice)."""


def _parts(num_microbatches: int, slices: int) -> tuple[list[Part], list[Part]]:
    """All parts of the step: (in the order of a stage's forwards, in the order of its backwards)."""
    numbers = range(num_microbatches)
    ascending = [(m, part) for m in numbers for part in range(slices)]
    descending = [(m, part) for m in numbers for part in reversed(range(slices))]
    return ascending, descending


def _rounds(kind: Kind, stages: list[int], pp_degree: int, parts: list[Part]) -> list[Operation]:
    order = []
    for start in range(0, len(parts), pp_degree):
        order += [Operation(kind, stage, *part) for stage in stages for part in parts[start : start + pp_degree]]
    return order


def _alternating(forwards: list[Operation], backwards: list[Operation], warmup: int) -> list[Operation]:
    """The first `warmup` forwards, then forwards and backwards in turn, then the backwards that are left."""
    warmup = min(warmup, len(forwards))
    operations = forwards[:warmup]
    for index, forward in enumerate(forwards[warmup:]):
        operations += [forward, backwards[index]]
    return operations + backwards[len(forwards) - warmup :]


def _fill(pp_rank: int, forward: Sequence[float], backward: Sequence[float], virtual_stages: int, num_microbatches: int) -> float:
    """The bubble of 1F1B: the time in which the other ranks compute one micro-batch, divided by the virtual stages.

    Arguments and result as in `schedule_figures.Bubble`.
    """
    others = sum(forward) + sum(backward) - forward[pp_rank] - backward[pp_rank]
    return others / virtual_stages


def _gpipe_bubble(
    pp_rank: int, forward: Sequence[float], backward: Sequence[float], virtual_stages: int, num_microbatches: int
) -> float:
    """GPipe's bubble. The largest forward and the largest backward set the pace; they may be on two different pipeline ranks.

    Arguments and result as in `schedule_figures.Bubble`.
    """
    paced = sum(forward) + sum(backward) + (num_microbatches - 1) * (max(forward) + max(backward))
    waiting = paced - num_microbatches * (forward[pp_rank] + backward[pp_rank])
    return max(_fill(pp_rank, forward, backward, virtual_stages, num_microbatches), waiting)


def _counted(order: ZeroBubble) -> Schedule:
    """A zero-bubble schedule, whose figures are counted from its operations."""
    bare = Schedule(order, takes_slices=True, takes_freezing=True, folded=order.folded, splits=True)
    return replace(bare, figures=counted_figures(bare.operations))


BUILT_IN: dict[str, Schedule] = {
    "gpipe": Schedule(
        gpipe,
        Figures(
            lambda pp_rank, pp, v, m: m,
            _gpipe_bubble,
            from_the_end=True,
            slices_in_flight=lambda pp_rank, pp, v, m, slices: m * slices,
        ),
        takes_slices=True,
    ),
    "1f1b": Schedule(
        one_forward_one_backward,
        Figures(
            lambda pp_rank, pp, v, m: min(m, pp - pp_rank),
            _fill,
            from_the_end=True,
            slices_in_flight=lambda pp_rank, pp, v, m, slices: min(m * slices, pp - pp_rank + slices - 1),
        ),
        takes_slices=True,
    ),
    # The warm-up runs two rounds of pp_degree micro-batches through a chunk before its first backward frees one.
    "interleaved_1f1b": Schedule(interleaved, Figures(lambda pp_rank, pp, v, m: min(m, 2 * pp), _fill), takes_slices=True),
    "zb_h1": _counted(H1),
    "zb_h2": _counted(H2),
    "zb_v": _counted(V_ZERO),
    "v_half": _counted(V_HALF),
    "v_min": _counted(V_MIN),
}
"""Name -> schedule."""


def is_folded(name: str) -> bool:
    """Whether a schedule's stages lie in a V; always False for a schedule that is not built in."""
    return name in BUILT_IN and BUILT_IN[name].folded


def schedule_named(name: str, field: str = "placement.schedule") -> Schedule:
    """The schedule of a name: a built-in one or an entry point's.

    An entry point gives a Schedule, or an order alone, without figures. Raises ValueError with the known names for another name.

    Args:
        name: as `placement.schedule` names it.
        field: where the name stands, for the text.
    """
    return BUILT_IN[name] if name in BUILT_IN else _added(name, field)


@cache
def _added(name: str, field: str) -> Schedule:
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in points:
        raise ValueError(
            f"{field} is {name!r}; known: {', '.join([*BUILT_IN, *points])}. An own schedule is an entry point "
            f"of {ENTRY_POINT_GROUP}, installed where workers run and where the controller plans"
        )
    found = points[name].load()
    return found if isinstance(found, Schedule) else Schedule(found)
