"""A run that is reshaped a hundred times: its workers hold no more descriptors, threads, ports or memory at the end."""

from itertools import cycle, islice
from pathlib import Path

import psutil
import pytest

from tests.e2e.runs import Running, Workshop, json_lines
from tests.integration.scripted_worker import Operator

SHAPES = ((2, 2), (1, 4), (4, 1), (1, 3), (2, 2), (3, 1))
"""The shapes, taken in turn; each round has the same shapes, so that the resources that workers hold can be compared."""
ROUNDS, WARM_ROUNDS = 17, 2
GROWTH_BYTES = 24 << 20
"""Allowed growth, for the steps' records and memory kept by the allocator: a leak of one group a reshape is far more."""

Held = dict[int, dict[str, int]]
"""The resources that each worker holds, by process id."""


@pytest.mark.wide
def test_a_hundred_reshapes_leave_descriptors_threads_ports_and_memory_flat(workshop: Workshop, tmp_path: Path) -> None:
    changes = {
        "training": {"steps": 100_000},
        "elastic": {"freeze": False},
        "checkpoint": {"every_steps": 0},
    }
    running = workshop.start(tmp_path / "run", changes, "--workers", "4")
    running.wait_for_step(2)
    operator = Operator(running.folder)
    held = []
    reshape(running, operator, (1, 1))
    for shape in islice(cycle(SHAPES), ROUNDS * len(SHAPES)):
        reshape(running, operator, shape)
        held.append({worker.process_id: held_by(worker.process_id) for worker in operator.status().workers})
    operator.close()
    running.interrupt()
    ended = running.end()
    assert ended.code == 3, ended.story()
    assert len(ended.events("reshape")) > ROUNDS * len(SHAPES)

    early, late = (least(held[number * len(SHAPES) :][: len(SHAPES)]) for number in (WARM_ROUNDS, ROUNDS - 1))
    assert early.keys() == late.keys(), "no worker was replaced"
    for process_id, before in early.items():
        after = late[process_id]
        assert after["descriptors"] <= before["descriptors"], (before, after)
        assert after["threads"] <= before["threads"], (before, after)
        assert after["ports"] <= before["ports"], (before, after)
        assert after["resident"] - before["resident"] < GROWTH_BYTES, (before, after)


def reshape(running: Running, operator: Operator, shape: tuple[int, int]) -> None:
    """Reshape the run by command; return when it has the new shape."""
    done = reshaped(running)
    operator.command("reshape", pp_degree=shape[0], dp_degree=shape[1])
    running.wait_until(lambda: reshaped(running) > done, f"{shape} after {done} reshapes")


def reshaped(running: Running) -> int:
    return sum(event["kind"] == "reshape" for event in json_lines(running.folder / "events.jsonl"))


def least(held: list[Held]) -> Held:
    """Return the minimum over a round of the shapes: at moments during a reshape two generations exist."""
    return {
        process_id: {name: min(moment[process_id][name] for moment in held) for name in found}
        for process_id, found in held[0].items()
    }


def held_by(process_id: int) -> dict[str, int]:
    process = psutil.Process(process_id)
    listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "ports": len(listening),
        "resident": process.memory_info().rss,
    }
