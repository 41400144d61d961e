"""Stragglers: who computes slowly, when that counts as sure, and the planner's use of it."""

import random

from frostline_contract.job import parse_job
from frostline_contract.plan import Placement
from frostline_contract.statistics import LinkProfile, UnitProfile, WorkerProfile
from frostline_controller.local_run.status import from_response, status_text
from frostline_controller.members.membership import Worker
from frostline_controller.members.stragglers import FORGET_SECONDS, LASTING_SECONDS, Belief, follow, slowness, work_of
from frostline_controller.planner.adapter import Choice, Situation, choose_placement
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_proto.v1 import control_pb2 as pb

UNITS = tuple(
    UnitProfile(
        forward_seconds=seconds, backward_seconds=2 * seconds, parameter_bytes=1000, optimizer_bytes=2000, activation_bytes=100,
        output_bytes=100,
    )
    for seconds in (0.001, 0.1, 0.1, 0.1, 0.1, 0.001)
)  # fmt: skip


def placement(**changes) -> Placement:
    values = {
        "pp_degree": 2, "dp_degree": 2, "stage_bounds": (0, 3, 6), "leaf_bounds": (0, 6, 8), "workers": ("a", "b", "c", "d"),
        **changes,
    }  # fmt: skip
    return Placement(**values)


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 9) for name, value in values.items()}


def test_work_follows_units_and_leaves() -> None:
    assert rounded(work_of(placement(), 0, UNITS, 16)) == {
        "a": round(12 * 0.603, 9), "b": round(12 * 0.603, 9), "c": round(4 * 0.603, 9), "d": round(4 * 0.603, 9),
    }  # fmt: skip
    frozen = work_of(placement(), 2, UNITS, 16)
    assert rounded(frozen)["a"] == round(12 * (0.001 + 0.1 + 0.3), 9), "frozen units are computed forward"
    cached = work_of(placement(use_cache=True), 2, UNITS, 16)
    assert rounded(cached)["a"] == round(12 * 0.3, 9)


def test_members_of_different_stages_and_dealings_are_comparable() -> None:
    work = work_of(placement(), 0, UNITS, 16)
    busy = {name: 1.1 * seconds for name, seconds in work.items()}
    assert rounded(slowness(busy, work)) == {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    assert rounded(slowness({**busy, "c": 2 * busy["c"]}, work))["c"] == 2.0
    assert slowness({"a": 1.0}, work) == {}, "one alone has no peers"
    assert slowness({"a": 1.0, "b": 0.0}, work) == {}, "0.0 is not measured"


def test_a_stage_of_little_work_is_not_slow_for_its_overhead() -> None:
    work = {"a": 1.0, "b": 1.0, "head": 0.001}
    assert slowness({"a": 1.0, "b": 1.0, "head": 0.1}, work)["head"] < 1.0


def feed(belief: Belief, readings: list[float], start: float = 0.0) -> Belief:
    for second, reading in enumerate(readings):
        belief = follow(belief, reading, start + second)
    return belief


def test_only_what_lasts_is_believed() -> None:
    long = int(LASTING_SECONDS) + 1
    assert feed(Belief(), [1.8] * (long - 1)).level == 1.0
    assert feed(Belief(), [1.8] * long).level == 1.8
    interrupted = [1.8] * 50 + [1.1] + [1.8] * 50
    assert feed(Belief(), interrupted).level == 1.0, "one usual reading begins it anew"
    uneven = [2.4, 1.6, 3.0] * 30
    assert feed(Belief(), uneven).level == 1.6, "the least of the readings, so at least that"


def test_a_slow_one_that_recovers_is_believed_again_and_one_left_out_is_tried_again() -> None:
    slow = feed(Belief(), [2.0] * 70)
    assert slow.level == 2.0
    assert feed(slow, [1.9] * 200, 70).level == 2.0, "near enough"
    assert feed(slow, [1.05] * 70, 70).level == 1.0
    assert feed(slow, [3.0] * 70, 70).level == 3.0
    assert follow(slow, 0.0, FORGET_SECONDS).level == 2.0
    assert follow(slow, 0.0, 70 + FORGET_SECONDS).level == 1.0


def test_noise_is_never_believed() -> None:
    """A day of readings of a shared machine: mostly within the tolerance, a tenth far outside it for moments."""
    chance = random.Random(3)
    belief = Belief()
    for second in range(86_400):
        reading = chance.lognormvariate(0.0, 0.15) * (chance.uniform(1, 6) if chance.random() < 0.1 else 1.0)
        belief = follow(belief, reading, float(second))
        assert belief.level == 1.0


def worker(name: str, lasting: float = 1.0, device: str = "cpu") -> Worker:
    profile = KeptProfile.of(WorkerProfile(micro_batch_size=4, units=UNITS, device=device))
    found = Worker(f"{name}/1", name, f"node-{name}", 1, "127.0.0.1", 1, profile, registered_at=0.0, last_received=0.0)
    found.lasting_slowness = lasting
    found.link = LinkProfile()
    return found


def choose(workers: tuple[Worker, ...], current: Placement | None = None, parallel_slots: int | None = None, **pins) -> Choice:
    job = parse_job(
        {
            "name": "slow", "model": {"family": "vit", "config": {"num_hidden_layers": 4}},
            "task": {"kind": "image_classification"}, "data": {"source": "digits"},
            "training": {"steps": 1000, "batch_size": 32, "micro_batch_size": 4, "reduction_leaves": 8},
            "placement": {"workers": len(workers), **pins},
        }
    )  # fmt: skip
    situation = Situation(
        num_units=6, freeze_point=0, workers=workers, current=current, start={}, pinned=None, steps_left=1000,
        reshape_seconds=1.0, boundary_bytes_per_sample=100, uncacheable="", cache_reachable=False, train_samples=1000,
        parallel_slots=parallel_slots,
    )  # fmt: skip
    return choose_placement(job, situation)


def leaves_by_worker(chosen: Placement) -> dict[str, int]:
    counts = [high - low for low, high in zip(chosen.leaf_bounds, chosen.leaf_bounds[1:], strict=False)]
    return {worker_id[0]: counts[i // chosen.pp_degree] for i, worker_id in enumerate(chosen.workers)}


def test_a_slow_member_gets_fewer_leaves() -> None:
    equal = choose((worker("a"), worker("b"), worker("c")), pp_degree=1, dp_degree=3)
    assert sorted(leaves_by_worker(equal.placement).values()) == [2, 3, 3]
    slow = choose((worker("a"), worker("b", lasting=3.0), worker("c")), pp_degree=1, dp_degree=3)
    dealt = leaves_by_worker(slow.placement)
    assert dealt["b"] == 1
    assert sum(dealt.values()) == 8
    one_machine = choose((worker("a"), worker("b", lasting=3.0), worker("c")), parallel_slots=3, pp_degree=1, dp_degree=3)
    assert sorted(leaves_by_worker(one_machine.placement).values()) == [2, 3, 3], "there it is noise"


def test_a_slow_member_is_left_out_where_a_spare_is_there_and_that_pays() -> None:
    pins = {"pp_degree": 1, "dp_degree": 2}
    usual = choose((worker("a"), worker("b")), **pins).placement
    assert {worker_id[0] for worker_id in usual.workers} == {"a", "b"}
    team = (worker("a"), worker("b", lasting=2.0), worker("s"))
    chosen = choose(team, current=usual, **pins)
    assert {worker_id[0] for worker_id in chosen.placement.workers} == {"a", "s"}
    assert chosen.pays, chosen.verdict
    again = choose(team, current=chosen.placement, **pins)
    assert not again.pays, "what was chosen stays"


def test_status_tells_who_is_slow() -> None:
    workers = [
        pb.WorkerStatus(worker_id=f"uid-{i}/1", pod_name=f"trainer-{i}", state="member", phase="vote", slowness=slowness)
        for i, slowness in enumerate((0.0, 1.1, 1.84))
    ]
    status = from_response(pb.StatusResponse(name="run", state="running", workers=workers))
    assert [worker["slowness"] for worker in status["workers"]] == [None, 1.1, 1.84]
    lines = status_text(status).splitlines()[-3:]
    assert [line.endswith("vote") for line in lines] == [True, True, False]
    assert lines[2].endswith("vote, 1.8 times as slow as its peers")
