"""The message that no placement fits, with the numbers and the remedy."""

from frostline_contract.job.section import AUTO
from frostline_controller.planner.cost import CostModel, replica_micro_batches
from frostline_controller.planner.cuts import StageCosts
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.leaves import deal_evenly
from frostline_controller.planner.shapes import ShapeLimits, dp_choices, pp_choices, schedules_for
from frostline_controller.planner.tried_slices import slice_counts


def refusal(model: CostModel, limits: ShapeLimits) -> str:
    """Return why no placement fits, with numbers: memory, or a pinned schedule that no allowed shape can run."""
    inputs = model.inputs
    dps = dp_choices(inputs, limits)
    shapes = [(pp, dp) for dp in dps for pp in pp_choices(inputs, limits, dp)]
    most = {pp: max(slice_counts(inputs, pp)) for pp, _ in shapes}
    runnable = [(pp, dp, s, v) for pp, dp in shapes for s, v in schedules_for(inputs, pp, dp, most[pp])]
    if not runnable:
        counts = sorted({m for _, dp in shapes for m in replica_micro_batches(inputs, deal_evenly(inputs.reduction_leaves, dp))})
        depths = sorted({pp for pp, _ in shapes})
        return (
            f"schedule {inputs.placement.schedule} cannot run pp {depths} with {counts} micro-batches a replica: "
            "it needs as many as stages; lower pp_degree or dp_degree, or set placement.schedule: auto"
        )
    deepest = {(dp, virtual): (pp, dp, schedule, virtual) for pp, dp, schedule, virtual in runnable}  # depths ascend: last wins
    tried = list(deepest.values())[:: 1 + len(deepest) // 16]
    least = min(_least_peak(model, *choice) for choice in tried) + inputs.base_bytes
    wanted = inputs.placement
    unpin = f"leave placement.pp_degree ({limits.pp}) to the planner, " if wanted.pp_degree is not None else ""
    unpin += f"set placement.schedule ({wanted.schedule}) to auto, " if wanted.schedule != AUTO else ""
    return (
        f"no placement of {len(inputs.members)} {inputs.members_are} fits their memory: the leanest needs {int(least):,} bytes a "
        f"worker, and {inputs.memory_cap_words}; {unpin}raise placement.workers, {_larger_group(inputs)}lower "
        "training.micro_batch_size or training.reduction_leaves, set training.activation_checkpointing, or raise "
        "placement.worker_memory_bytes"
    )


def _larger_group(inputs: PlanInputs) -> str:
    """Return the remedy to raise a degree of groups that the job pins below what its tiles allow; empty where there is none."""
    wanted, most = inputs.placement, inputs.most_in_group
    degrees = {"tp_degree": (wanted.tp_degree, most.inner), "tp_depth": (wanted.tp_depth, most.hidden)}
    words = [f"raise placement.{name} ({one}; tiles allow {top}), " for name, (one, top) in degrees.items() if one and one < top]
    return "".join(words)


def _least_peak(model: CostModel, pp: int, dp: int, schedule: str, virtual: int) -> float:
    """Return the least possible memory of the fullest worker of a shape, in bytes without base_bytes.

    Args:
        pp, dp: the degrees.
        schedule: name of the schedule.
        virtual: stages of each pipeline rank.
    """
    leaf_bounds = deal_evenly(model.inputs.reduction_leaves, dp)
    longest = max(replica_micro_batches(model.inputs, leaf_bounds))
    slices = model.inputs.num_slices(pp, schedule)
    costs = StageCosts(model, longest, leaf_bounds, schedule, virtual, capped=False, slices=slices)
    return costs.least_peak(pp * virtual, pp)
