"""Shapes that a command asks for: why no plan can have one, told before anything is prepared."""

from frostline_contract.job import Job
from frostline_contract.job.cluster import ScheduledReshape
from frostline_contract.job.section import AUTO
from frostline_contract.schedules import is_folded, schedule_named
from frostline_controller.planner.leaves import deal_evenly, micro_batch_counts
from frostline_controller.planner.shapes import has_whole_rounds

INTERLEAVED = "interleaved_1f1b"


def check_asked(job: Job, asked: ScheduledReshape, trainable_units: int) -> None:
    """Check a shape against the job, and its schedule against the units and micro-batches that there are.

    The planner would run another schedule in such a case, or find no plan.

    Args:
        job: the run's.
        asked: the shape.
        trainable_units: units from the freeze point on.

    Raises:
        ValueError: there is no such shape now; the message has field, value and remedy.
    """
    job.check_reshape(asked)
    name, pp = asked.schedule, asked.pp_degree
    schedule = None if name == AUTO else schedule_named(name, "schedule")
    virtual = _stages_of_a_rank(asked)
    if pp * virtual > trainable_units:
        stages = f", {virtual} stages a rank," if virtual > 1 else ""
        raise ValueError(
            f"pp_degree {pp}{stages} exceeds the {trainable_units} trainable units: each stage needs one; lower "
            + ("pp_degree or virtual_stages, or ask for zb_h1" if virtual > 1 else "it")
        )
    slices = _slices_of(job, asked)
    counts = _micro_batches(job, asked.dp_degree)
    parts = f" of {slices} slices" if slices > 1 else ""
    if name == INTERLEAVED and not has_whole_rounds(counts, pp, slices):
        raise ValueError(
            f"schedule is {name} and a replica has {_listed(counts)} micro-batches{parts} for pp_degree {pp}: it needs at least "
            f"{pp}, in rounds of one size; lower a degree, or ask for 1f1b or zb_h1"
        )
    if schedule is not None and name == "1f1b" and min(counts) * slices < pp:
        raise ValueError(
            f"schedule is 1f1b and a replica has {min(counts)} micro-batches{parts} for pp_degree {pp}: it needs as "
            "many slices of micro-batches as stages; lower a degree, raise slices, or ask for gpipe or zb_h1"
        )


def _stages_of_a_rank(asked: ScheduledReshape) -> int:
    """Return the stages that the schedule gives each rank. Raises ValueError where virtual_stages are not that many."""
    name, virtual = asked.schedule, asked.virtual_stages
    given = f"virtual_stages is {virtual} and"
    if asked.pp_degree == 1 and (virtual > 1 or is_folded(name)):
        raise ValueError(
            f"{given} schedule is {name} with pp_degree 1: one rank has nothing to interleave with; raise pp_degree, or leave "
            "both out"
        )
    if is_folded(name):
        if virtual > 2:
            raise ValueError(f"{given} schedule is {name}, whose ranks have two stages; leave virtual_stages out")
        return 2
    if name == INTERLEAVED and virtual == 1:
        raise ValueError(f"{given} schedule is {name}, which needs several stages a rank; set virtual_stages to 2 or more")
    if virtual > 1 and name not in (INTERLEAVED, AUTO):
        raise ValueError(
            f"{given} schedule is {name}, whose ranks have one stage; leave virtual_stages out, or ask for {INTERLEAVED}"
        )
    return virtual if name == INTERLEAVED else 1


def _slices_of(job: Job, asked: ScheduledReshape) -> int:
    """Return the most slices of a micro-batch. Raises ValueError where slices are asked for and there cannot be any."""
    takes = asked.pp_degree > 1 and (asked.schedule == AUTO or schedule_named(asked.schedule).takes_slices)
    if (asked.slices or 1) > 1 and not takes:
        why = "pp_degree is 1: nobody follows" if asked.pp_degree == 1 else f"schedule is {asked.schedule}, which takes none"
        raise ValueError(f"slices is {asked.slices} and {why}; leave slices out")
    cells = job.training.num_cells
    return min(asked.slices or job.placement.slices or cells, cells) if takes else 1


def _micro_batches(job: Job, dp_degree: int) -> tuple[int, ...]:
    """Return the micro-batches of each of dp_degree replicas in a step."""
    training = job.training
    if training.batch == "per_replica":
        return (training.num_microbatches,) * dp_degree
    leaves = training.reduction_leaves
    return micro_batch_counts(deal_evenly(leaves, dp_degree), training.num_microbatches, leaves)


def _listed(counts: tuple[int, ...]) -> str:
    return " or ".join(map(str, sorted(set(counts))))
