"""Fixed cases: kills in each phase of the commit protocol, and one case of each kind of loss."""

from typing import Any

from frostline_contract.job.cluster import Fault
from tests.chaos.acts import SCALE, SECOND_OWNER, Act
from tests.chaos.cases import (
    CUT_SECONDS_LONG,
    LATE_CUT_SECONDS,
    LATE_WAIT_SECONDS,
    OTHER_ROOT,
    QUICK_CLOCKS,
    STALLED_CLOCKS,
    STALLED_SECONDS,
    Case,
    planned,
)
from tests.chaos.jobs import ADAPTED_IN_TILES, IN_A_GRID, IN_CELLS, LOADED, SHARED, TILED, TILED_AND_SHARED

COMMIT_PHASES = ("exchange", "prepared", "vote", "seen", "commit", "committed")
"""Before PREPARED, between PREPARED and the vote, in the vote, after it, in the update, after the update."""

SUBSET = ("owner-and-buddy", "killed-at-a-write", "late-decision")
"""The cases that run with the other tests."""

TOGETHER_SECONDS = 2.0
"""Time in which all members of a busy machine reach the same place of a step."""
SLOW_SECONDS = 0.1
"""What each of twenty steps takes longer, so that an act from outside finds the run before its end."""


def fixed_cases() -> list[Case]:
    """Return all fixed cases, always the same."""
    return [*commit_protocol(), *ways(), *jobs(), *in_groups(), *in_cells(), *from_outside()]


def commit_protocol() -> list[Case]:
    """Return kills on (4, 1), where buddies keep the units without a second owner, and (2, 2), with the two errors that only
    injection reaches."""
    cases = []
    for pp, dp in ((4, 1), (2, 2)):
        kinds = [("kill_worker", phase) for phase in COMMIT_PHASES] + [("tear", ""), ("late_commit", "")]
        for number, (kind, phase) in enumerate(kinds):
            fault = planned(kind, 14 + number, number % 4, phase)
            cases.append(Case(f"{pp}x{dp}-{phase or kind}", None, "vit", 4, (pp, dp), (fault,)))
    return cases


def case(name: str, faults: list[Fault], aim: str = "whole", **more: Any) -> Case:
    workers, shape = more.pop("workers", 4), more.pop("shape", (4, 1))
    return Case(name, None, more.pop("variant", "vit"), workers, shape, tuple(faults), aim, **more)


def ways() -> list[Case]:
    """Return one case of each way in which state is lost or kept."""
    # They sleep where they are killed, so that all three are there before the first one's death is heard of.
    asleep = [planned("slow", 13, worker, "load", TOGETHER_SECONDS) for worker in (0, 1, 2)]
    three = [*asleep, *(planned("kill_worker", 13, worker, "load") for worker in (0, 1, 2))]
    recovery = [planned("kill_worker", 12, 1, "norms"), planned("kill_worker", 11, 3, "recovery")]
    unreached = [planned("kill_controller", 12, 0, "planned"), planned("kill_worker", 14, 2, "prepared")]
    return [
        case("owner-and-buddy", three, "lost", checkpoint_every=5),
        case("whole-node", [planned("kill_node", 20, 0)], "lost", shape=(2, 2), pods_per_node=4, checkpoint_every=5),
        case("no-buddies", [planned("kill_worker", 22, 2, "exchange")], "lost", buddies=False),
        case("before-any-checkpoint", [planned("kill_worker", 5, 2, "schedule")], "lost", buddies=False),
        case("handed-over", [planned("leave", 12, 3), planned("leave", 20, 0)], variant="tied"),
        case("reclaimed", [planned("leave", 12, worker) for worker in range(4)], min_workers=4),
        case("left-beside-a-kill", [planned("kill_worker", 14, 0, "between"), planned("leave", 14, 1)], shape=(1, 5), workers=5,
             min_workers=4),
        case("stopped", [planned("stop", 12, 0, "exchange")], clocks=dict(QUICK_CLOCKS)),
        case("deadlocked", [planned("deadlock", 12, 1, "schedule")], shape=(2, 2), clocks=dict(QUICK_CLOCKS)),
        case("device-error", [planned("device_error", 14, 2, "exchange"), planned("device_error", 20, 1, "vote")]),
        case("device-hang", [planned("device_hang", 12, 1)], shape=(2, 2), clocks=dict(QUICK_CLOCKS)),
        case("out-of-memory", [planned("oom", 12, 1, "exchange")], shape=(None, None)),
        case("during-recovery", recovery, workers=5, shape=(5, 1)),
        case("during-reshape", [planned("kill_worker", 12, 1, "reshape")], shape=(None, None), reshapes=((12, 2, 2), (24, 4, 1))),
        case("during-freeze", [planned("kill_worker", 10, 2, "freeze")], shape=(2, 2), variant="tied"),
        case("planned-unheard", unreached),
        case("controller-recovering", [planned("kill_worker", 14, 2, "seen"), planned("kill_controller", 12, 0, "recovering")]),
        case("half-a-checkpoint", [planned("kill_in_checkpoint", 10, 1)], checkpoint_every=5),
        case("no-cache", [planned("kill_redis", 16, 0), planned("kill_cache_server", 24, 0)], shape=(2, 2), cache=True),
        case("split-brain", [planned("cut_node", 16, 0, seconds=CUT_SECONDS_LONG)], "lost", shape=(2, 2), pods_per_node=4,
             checkpoint_every=5, clocks=dict(QUICK_CLOCKS)),
        case("late-decision", [planned("cut", 6, 0, "vote", LATE_CUT_SECONDS)], "late", wait_seconds=LATE_WAIT_SECONDS),
    ]  # fmt: skip


def jobs() -> list[Case]:
    """Return a killed worker in each kind of job that the commit protocol's cases do not train, and on workers of fixed speed."""
    killed = planned("kill_worker", 14, 1, "exchange")
    return [
        case("rolled-back", [planned("kill_worker", 11, 1, "rollback")], variant="hurt", shape=(2, 2)),
        case("replicas", [killed], variant="replicas", shape=(1, 2)),
        case("in-an-audit", [planned("kill_worker", 15, 1, "audit")], shape=(2, 2), audit_every=5),
        case("early", [killed, planned("kill_worker", 26, 0, "freeze")], variant="early", shape=(2, 2), cache=True),
        case("adapted", [killed, planned("kill_worker", 26, 0, "freeze")], variant="adapted", shape=(2, 2), cache=True),
        case("fixed-speed", [killed, planned("leave", 26, 2)], worker_cpus=0.25),
        case(
            "fixed-speed-early",
            [killed, planned("kill_worker", 26, 0, "freeze")],
            variant="early",
            shape=(2, 2),
            cache=True,
            worker_cpus=0.25,
        ),
        case("gpipe", [killed], schedule="gpipe", shape=(2, 2)),
        case("interleaved", [killed], schedule="interleaved_1f1b", virtual_stages=2, shape=(2, 2)),
        case("zero-bubble", [killed], schedule="zb_h2", reshapes=((24, 3, 1),)),
        case("folded", [killed], schedule="zb_v", shape=(2, 2)),
        case("gathered", [killed, planned("kill_worker", 26, 0, "schedule")], variant=SHARED[1], shape=(2, 2), shard="use"),
        case("pairs", [planned("kill_pod", 14, 1)], workers_per_pod=2, min_workers=3, shape=(2, 2)),
        case("cost", [killed], objective="cost", min_workers=2, shape=(None, None)),
        case(
            "flipped-and-killed",
            [Fault(kind="flip", step=14, worker=1, what="weight"), planned("kill_worker", 26, 2, "vote")],
            "flip",
            shape=(1, 3),
            workers=3,
            checkpoint_every=8,
        ),
        case(
            "broken-core",
            [Fault(kind="flip", step=14, worker=1, what="gradient", lasting=True)],
            "flip",
            shape=(1, 3),
            workers=3,
            audit_every=4,
            checkpoint_every=5,
        ),
        case("flipped", [Fault(kind="flip", step=17, worker=1, what="moment")], "flip", shape=(2, 2), checkpoint_every=8),
    ]


def in_groups() -> list[Case]:
    """Return a killed worker in each kind of tensor group: adapters, shared-out state, divided samples, columns and levels."""
    killed = planned("kill_worker", 14, 1, "exchange")
    return [
        case(
            "adapted-groups",
            [killed, planned("kill_worker", 26, 0, "freeze")],
            variant=ADAPTED_IN_TILES,
            shape=(1, 2),
            tp=2,
            reshapes=((24, 2, 1),),
            reshapes_tp=(2,),
            cache=True,
        ),
        case(
            "groups",
            [killed],
            variant=TILED_AND_SHARED,
            shape=(1, 2),
            tp=2,
            shard="step",
            reshapes=((24, 2, 1),),
            reshapes_tp=(2,),
        ),
        case(
            "samples", [killed], variant=TILED, shape=(1, 2), tp=2, tensor_rows="split", reshapes=((24, 2, 1),), reshapes_tp=(2,)
        ),
        case(
            "levels",
            [killed],
            variant=IN_A_GRID,
            shape=(1, 1),
            tp=2,
            depth=2,
            reshapes=((24, 1, 2),),
            reshapes_tp=(1,),
            reshapes_depth=(2,),
            reshapes_shard=("use",),
        ),
    ]


def in_cells() -> list[Case]:
    """Return faults of all kinds with token cells: in slices of their own, in other ones after a reshape, and in a rollback."""
    faults = [
        planned("kill_worker", 14, 1, "schedule"),
        planned("late_commit", 18, 2),
        planned("kill_redis", 20, 0),
        planned("kill_worker", 26, 0, "freeze"),
    ]
    reshaped = {"slices": 4, "reshapes": ((24, 2, 2),), "reshapes_slices": (2,)}
    return [
        case("cells", faults, variant=IN_CELLS[SHARED[1]], workers=5, shard="step", cache=True, audit=1.0, **reshaped),
        case("rolled-back-cells", [planned("kill_worker", 11, 1, "rollback")], variant=IN_CELLS["hurt"], shape=(3, 1), slices=3),
    ]


def from_outside() -> list[Case]:
    """Return one case of each act from outside."""

    slow = [planned("slow", 12, worker, "schedule", SLOW_SECONDS) for worker in range(4)]

    def acted(name: str, *acts: Act, aim: str = "outside", **more: Any) -> Case:
        faults = more.pop("faults", [])
        return case(name, faults, aim, acts=acts, shape=(2, 2), **{"checkpoint_every": 5, **more})

    return [
        acted("drained", Act("drain", 12)),
        acted("killed-run", Act("kill_all", 18), aim="lost"),
        acted("killed-at-a-write", Act("kill_write", 12, file="statefulset.json", at="name"), aim="lost", faults=slow),
        acted("killed-at-the-end", Act("kill_write", 33, file="epochs/", at="name"), aim="lost"),
        acted("no-agent", Act("kill_agent", 12, 1)),
        acted("no-preload", Act("kill_preload", 12), aim="lost"),
        acted("stopped-machine", Act("hold_all", 12, seconds=5.0)),
        acted("no-answer", Act("hold_redis", 12, seconds=3.0), Act("hold_cache_server", 20, seconds=3.0), cache=True),
        acted("stalled-state", Act("stall_write", 9, file="statefulset.json", at="sync", seconds=4.0)),
        acted(
            "lying-disk",
            Act("lie_write", 9, file="metrics.jsonl", at="sync", times=3),
            Act("lie_write", 16, file="sha256", at="name"),
        ),
        acted(
            "full-disk",
            Act("fail_write", 9, file="plans.jsonl", at="sync", times=3),
            Act("fail_write", 16, file="manifest", at="sync"),
        ),
        case(
            "other-data", [planned("kill_pod", 14, 1)], variant="tied", acts=(Act("other_data", 10, seconds=6.0),), shape=(2, 2)
        ),
        acted(
            "stalled-end",
            Act("stall_write", 30, file="safetensors", at="sync", seconds=STALLED_SECONDS),
            checkpoint_every=0,
            clocks=dict(STALLED_CLOCKS),
        ),
        acted("full-at-the-end", Act("fail_write", 30, file="manifest", at="sync", times=3), checkpoint_every=0),
        case(
            "other-weights",
            [planned("kill_pod", 14, 1)],
            variant=LOADED,
            acts=(Act("other_weights", 10, seconds=6.0),),
            shape=(2, 2),
        ),
        acted("by-hand", Act("freeze", 12, value=2), Act("checkpoint", 14), Act("unfreeze", 20), Act("resize", 24, value=3)),
        acted("scaled", Act(SCALE, 10, value=2), Act(SCALE, 10, value=3), Act("resize", 18, value=2), Act(SCALE, 24, value=4)),
        case(
            "scaled-while-handed-back",
            [],
            acts=(Act(SCALE, 11, value=3), Act(SCALE, 12, value=2), Act(SCALE, 22, value=4)),
            objective="cost",
            shape=(None, None),
        ),
        # The second request comes while the controller is about to write the answer to the first.
        acted(
            "scaled-while-it-answers",
            Act("stall_write", 4, file="statefulset.json", at="sync", seconds=1.5),
            Act(SCALE, 4, value=2),
            Act(SCALE, 5, value=3),
        ),
        acted("other-root", Act("kill_all", 18), aim="lost", checkpoint_uri=OTHER_ROOT),
        acted("one-shard", Act("kill_shard", 12, 1), Act("hold_redis", 20, 0, seconds=3.0), cache=True, cache_shards=2),
        acted("second-owner", Act(SECOND_OWNER, 12), Act("reshape", 16, shape=(4, 1))),
        case("no-forks", [planned("kill_worker", 14, 1, "exchange")], acts=(Act("hold_preload", 13, seconds=5.0),), shape=(2, 2)),
        acted(
            "full-beside-the-run",
            Act("fail_write", 1, file="profile.json", at="name", times=3),
            Act("fail_write", 2, file="traces.jsonl", at="sync", times=3),
            Act("lie_write", 3, file="ledger.json", at="sync", times=2),
            Act("fail_write", 20, file="run/model", at="name", times=2),
        ),
        acted("killed-at-the-ledger", Act("kill_write", 33, file="ledger.json", at="name"), aim="lost"),
    ]
