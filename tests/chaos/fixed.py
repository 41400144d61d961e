"""Fixed cases: kills in each phase of the commit protocol, and one case of each way in which a run can be hurt."""

from tests.chaos.cases import CUT_SECONDS_LONG, LATE_CUT_SECONDS, LATE_WAIT_SECONDS, QUICK_CLOCKS, Case, planned

COMMIT_PHASES = ("exchange", "prepared", "vote", "seen", "commit", "committed")
"""Before PREPARED, between PREPARED and the vote, in the vote, after it, in the update, after the update."""

SUBSET = ("4x1-vote", "2x2-commit", "owner-and-buddy", "whole-node", "handed-over", "stopped", "during-recovery",
          "planned-unheard", "split-brain", "late-decision")  # fmt: skip
"""What runs with the other tests."""


def fixed_cases() -> list[Case]:
    """All of them, always the same."""
    return [*commit_protocol(), *ways()]


def commit_protocol() -> list[Case]:
    """On (4, 1), where buddies keep what has no second owner, and (2, 2); with the two errors that only injection reaches."""
    cases = []
    for pp, dp in ((4, 1), (2, 2)):
        kinds = [("kill_worker", phase) for phase in COMMIT_PHASES] + [("tear", ""), ("late_commit", "")]
        for number, (kind, phase) in enumerate(kinds):
            fault = planned(kind, 14 + number, number % 4, phase)
            cases.append(Case(f"{pp}x{dp}-{phase or kind}", None, "vit", 4, (pp, dp), (fault,)))
    return cases


def ways() -> list[Case]:
    """One case each of what is lost and what is not."""

    def case(name: str, faults: list, aim: str = "whole", **more) -> Case:
        workers, shape = more.pop("workers", 4), more.pop("shape", (4, 1))
        return Case(name, None, more.pop("variant", "vit"), workers, shape, tuple(faults), aim, **more)

    three = [planned("kill_worker", 13, worker, "load") for worker in (0, 1, 2)]
    recovery = [planned("kill_worker", 12, 1, "norms"), planned("kill_worker", 11, 3, "recovery")]
    unheard = [planned("kill_controller", 12, 0, "planned"), planned("kill_worker", 14, 2, "prepared")]
    return [
        case("owner-and-buddy", three, "lost", checkpoint_every=5),
        case("whole-node", [planned("kill_node", 20, 0)], "lost", shape=(2, 2), pods_per_node=4, checkpoint_every=5),
        case("no-buddies", [planned("kill_worker", 22, 2, "exchange")], "lost", buddies=False),
        case("before-any-checkpoint", [planned("kill_worker", 5, 2, "schedule")], "lost", buddies=False),
        case("handed-over", [planned("leave", 12, 3), planned("leave", 20, 0)], variant="tied"),
        case("stopped", [planned("stop", 12, 0, "exchange")], clocks=dict(QUICK_CLOCKS)),
        case("deadlocked", [planned("deadlock", 12, 1, "schedule")], shape=(2, 2), clocks=dict(QUICK_CLOCKS)),
        case("during-recovery", recovery, workers=5, shape=(5, 1)),
        case("during-reshape", [planned("kill_worker", 12, 1, "reshape")], shape=(None, None), reshapes=((12, 2, 2), (24, 4, 1))),
        case("during-freeze", [planned("kill_worker", 10, 2, "freeze")], shape=(2, 2), variant="tied"),
        case("planned-unheard", unheard),
        case("controller-recovering", [planned("kill_worker", 14, 2, "seen"), planned("kill_controller", 12, 0, "recovering")]),
        case("half-a-checkpoint", [planned("kill_in_checkpoint", 10, 1)], checkpoint_every=5),
        case("no-cache", [planned("kill_redis", 16, 0), planned("kill_cache_server", 24, 0)], shape=(2, 2), cache=True),
        case("split-brain", [planned("cut_node", 16, 0, seconds=CUT_SECONDS_LONG)], "lost", shape=(2, 2), pods_per_node=4,
             checkpoint_every=5, clocks=dict(QUICK_CLOCKS)),
        case("late-decision", [planned("cut", 6, 0, "vote", LATE_CUT_SECONDS)], "late", wait_seconds=LATE_WAIT_SECONDS),
    ]  # fmt: skip
