"""The values chosen for `auto`: few leaves for few workers, enough for the largest world, and nothing that does not fit."""

from typing import Any

import pytest

from frostline_contract.job import Job, JobError, dump_job, job_digest, parse_job
from frostline_contract.job.automatic import Settled, at_size, sizes_to_try, with_numbers_of, with_settled
from frostline_contract.job.change import take_changes
from frostline_contract.statistics import SizeProfiles, UnitProfile, WorkerProfile
from frostline_controller.planner.numerics import settle_measured

CALL_SECONDS, SAMPLE_SECONDS = 4e-3, 1e-3
"""A unit's forward: so much for the call, and so much a sample. Large micro-batches pay where the pipeline stays full."""
SAMPLE_BYTES = 1_000_000


def job(workers: int = 4, rails_off: tuple[str, ...] = (), **fields: Any) -> Job:
    """Return a job of 64 samples a step that has `auto` for both numbers; `fields` are those of `training` and `placement`."""
    training = {"steps": 1000, "batch_size": 64, "micro_batch_size": "auto", "reduction_leaves": "auto", "state_ranges": 1,
                "audit_every_steps": 100, "tensor_tiles": {}}  # fmt: skip
    placed = {name: value for name, value in fields.items() if name not in training}
    return parse_job({
        "model": {"family": "vit", "config": {"hidden_size": 64}}, "task": {"kind": "image_classification"},
        "data": {"source": "digits"}, "training": {**training, **{name: fields[name] for name in fields.keys() - placed.keys()}},
        "placement": {"workers": workers, **placed}, "freeze": {"rails": {"off": list(rails_off)}},
    })  # fmt: skip


def unit(size: int, call_seconds: float = CALL_SECONDS) -> UnitProfile:
    forward = call_seconds + SAMPLE_SECONDS * size
    return UnitProfile(
        forward_seconds=forward, backward_seconds=2 * forward, parameter_bytes=4_000_000, optimizer_bytes=8_000_000,
        activation_bytes=SAMPLE_BYTES * size, output_bytes=10_000 * size,
    )  # fmt: skip


def measured(of: Job, call_seconds: float = CALL_SECONDS, units: int = 8, memory_bytes: int = 0) -> SizeProfiles:
    """Return the profiles that a worker would have measured, one at each size that may be chosen."""
    return SizeProfiles(
        profiles=tuple(
            WorkerProfile(micro_batch_size=size, units=(unit(size, call_seconds),) * units, memory_bytes=memory_bytes)
            for size in sizes_to_try(of.training, of.placement.workers)
        )
    )


def settled(of: Job, slots: int | None = None, **fields: Any) -> Settled:
    return settle_measured(of, measured(of, **fields), slots)


def test_one_worker_takes_the_whole_batch_and_one_leaf():
    chosen = settled(job(workers=1))
    assert (chosen.micro_batch_size, chosen.reduction_leaves) == (64, 1)


def test_more_workers_take_more_and_smaller_micro_batches_and_leaves_for_their_replicas():
    chosen = [settled(job(workers=workers, min_workers=workers)) for workers in (1, 2, 4, 8)]
    sizes, leaves = [one.micro_batch_size for one in chosen], [one.reduction_leaves for one in chosen]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    assert leaves == sorted(leaves)
    assert leaves[0] < leaves[-1]


def test_the_most_workers_count_for_more_than_the_fewest():
    """With so dear a call a lone worker, to which losses may lead, would take the whole batch at once, and four would wait."""
    dear = {"call_seconds": 0.04}
    assert settled(job(workers=1), **dear).micro_batch_size == 64
    assert [settled(job(workers=4, min_workers=least), **dear).micro_batch_size for least in (1, 4)] == [16, 16]


def test_few_leaves_allow_fewer_and_larger_micro_batches():
    assert settled(job(reduction_leaves=2)).micro_batch_size > settled(job(reduction_leaves=32)).micro_batch_size == 2


def test_a_pinned_pipeline_gets_micro_batches_enough_to_fill_it():
    deep = settled(job(pp_degree=4, min_workers=4))
    assert 64 // deep.micro_batch_size >= 4


def test_leaves_are_for_what_the_rails_let_freeze():
    """Where two units are left to learn, two pipelines of two find room; by the default rails four are always left."""
    bounds = {"pp_degree": 4, "min_workers": 4}
    railed, free = (settled(job(**bounds, rails_off=off)) for off in ((), ("cap_total", "last_blocks")))
    assert (railed.reduction_leaves, free.reduction_leaves) == (1, 2)
    assert "with 6 of 8 units frozen" in free.reason and "with 6 of 8" not in railed.reason and "with 4 of 8" in railed.reason


def test_of_equals_the_one_with_leaves_for_all_replicas_is_taken():
    """With one micro-batch size and units that a pipeline cuts evenly, a pipeline of four is planned as fast as four replicas."""
    pipeline, open_shape = (settled(job(micro_batch_size=2, **shape), slots=1) for shape in ({"pp_degree": 4}, {}))
    assert (pipeline.reduction_leaves, open_shape.reduction_leaves) == (1, 4)


def test_free_calls_make_small_micro_batches_of_a_deep_pipeline_and_dear_ones_large():
    free, dear = (settled(job(pp_degree=4, min_workers=4), call_seconds=seconds) for seconds in (0.0, 1.0))
    assert free.micro_batch_size < dear.micro_batch_size


def test_pinned_replicas_each_have_a_leaf():
    assert settled(job(workers=8, dp_degree=8)).reduction_leaves == 8


def test_the_fewest_workers_of_a_run_are_those_of_its_groups():
    reason = settled(job(workers=8, tensor_tiles={"inner": 2, "hidden": 2}, tp_degree=2, tp_depth=2)).reason
    assert " on 4 workers (tp_depth 2 x tp_columns 2 x pp 1 x dp 1), " in reason and " on 8 workers (tp_depth 2 x " in reason


@pytest.mark.parametrize("shard", ["step", "auto"])
def test_replicas_that_share_state_out_find_room_where_whole_ones_do_not(shard: str):
    """Eight units of 4 MB with 8 MB of moments: 160 MB with two buffers of gradients, and 112 MB where moments are shared."""
    pinned, narrow = {"min_workers": 4, "pp_degree": 1, "dp_degree": 4, "audit_every_steps": 0}, {"memory_bytes": 150_000_000}
    whole, shared = settled(job(**pinned), **narrow), settled(job(**pinned, state_ranges=4, shard=shard), **narrow)
    unfrozen = "on 4 workers (pp 1 x dp 4"
    assert unfrozen in shared.reason and unfrozen not in whole.reason


def test_a_small_memory_takes_smaller_micro_batches():
    roomy, narrow = (settled(job(workers=1), memory_bytes=cap) for cap in (10**10, 300_000_000))
    assert roomy.micro_batch_size == 64
    assert narrow.micro_batch_size < 64
    assert "64 does not fit" in narrow.reason


def test_a_world_in_which_nothing_fits_does_not_count():
    """One worker cannot hold the model, four can: the run starts with four."""
    assert settled(job(workers=4), memory_bytes=120_000_000).micro_batch_size < 64


def test_where_nothing_fits_at_all_the_planner_says_how_much_is_missing():
    with pytest.raises(ValueError, match="no placement of 4 workers fits their memory: the leanest needs"):
        settled(job(workers=4), memory_bytes=10_000_000)


def test_workers_that_share_cores_gain_nothing_from_more_micro_batches():
    assert settled(job(workers=4), slots=1).micro_batch_size == 64


def test_only_what_is_auto_is_settled():
    half = job(micro_batch_size=16)
    chosen = settled(half)
    assert chosen.micro_batch_size == 16
    assert chosen.reason.startswith("reduction_leaves ")
    assert with_settled(half, chosen).training.automatic == ()


def test_the_reason_names_the_choice_the_shapes_and_what_others_would_take():
    reason = settled(job(workers=2)).reason
    assert all(
        part in reason
        for part in (
            "micro_batch_size ",
            "reduction_leaves ",
            " on 1 worker ",
            " on 2 workers (",
            " with 4 of 8 units frozen",
            "other sizes, of its time: ",
        )
    )


def test_sizes_cut_the_batch_into_powers_of_two():
    assert sizes_to_try(job(workers=2, batch_size=320).training, 2) == (20, 40, 80, 160, 320)
    assert sizes_to_try(job(workers=2, reduction_leaves=16).training, 2) == (4,)
    assert sizes_to_try(job(micro_batch_size=24).training, 4) == (24,)


def test_a_job_is_another_one_once_it_has_settled_and_a_changed_release_leaves_it():
    offered = job()
    followed = with_settled(offered, Settled(micro_batch_size=16, reduction_leaves=4))
    assert followed.training.num_microbatches == 4
    assert job_digest(followed) == job_digest(job(micro_batch_size=16, reduction_leaves=4)) != job_digest(offered)
    assert "auto" in dump_job(offered)
    upgraded = job(workers=6)
    taken, said = take_changes(followed, with_numbers_of(upgraded, followed))
    assert (taken.training, taken.placement.workers) == (followed.training, 6)
    assert said == ["changed: placement.workers from 4 to 6"]


def test_a_job_is_measured_without_the_shapes_that_it_asks_for():
    assert at_size(job(dp_degree=4), 32).training.num_microbatches == 2


def test_what_cannot_be_is_refused_before_anything_is_measured():
    with pytest.raises(JobError, match=r"reduction_leaves 128 exceeds batch_size 64.*set it to auto"):
        job(reduction_leaves=128)
