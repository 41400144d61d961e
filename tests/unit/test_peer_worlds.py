"""What counts as a committed step of a system that is measured beside ours."""

from typing import Any

from tests.benchmarks.peer_worlds import commits_of_survivors


def reported(step: int, members: int, *replicas: int, newcomer: bool = False) -> list[dict[str, Any]]:
    """Each replica's line of a step; the newcomer is another process of replica 2."""
    process_ids = {number: 100 + number for number in range(4)} | ({2: 200} if newcomer else {})
    return [
        {"replica": number, "step": step, "members": members, "process_id": process_ids[number], "time": step + number / 10}
        for number in replicas
    ]


def test_a_step_counts_when_all_its_members_have_it():
    whole, lacking = reported(1, 4, 0, 1, 2, 3), reported(2, 4, 0, 1, 3)
    assert [(one.step, one.time, one.members) for one in commits_of_survivors([*whole, *lacking])] == [(1, 1.3, 4)]


def test_a_peer_that_waits_for_the_newcomer_is_another_world_with_as_many_members():
    lines = [*reported(1, 4, 0, 1, 2, 3), *reported(2, 4, 0, 1, 2, 3, newcomer=True)]
    before, after = commits_of_survivors(lines)
    assert (before.members, after.members) == (4, 4) and before.world != after.world


def test_a_peer_that_goes_on_without_the_killed_one_is_another_world():
    before, after = commits_of_survivors([*reported(1, 4, 0, 1, 2, 3), *reported(2, 3, 0, 1, 3)])
    assert after.members == 3 and before.world != after.world
