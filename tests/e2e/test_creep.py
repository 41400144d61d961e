"""A run that is reshaped a hundred times: its workers hold no more descriptors, threads, ports or memory at the end."""

import json
import time
from itertools import cycle, islice
from pathlib import Path

import psutil
import pytest

from tests.e2e.runs import Running, Workshop, json_lines

RESHAPES, EVERY_STEPS = 100, 8
SHAPES = ((2, 2), (1, 4), (4, 1), (1, 3), (2, 2), (3, 1))
"""Gone through in turn; each time round the workers are in the same shapes as before, so what they hold can be compared."""
WARM, LATE = 2 * len(SHAPES), RESHAPES - 3 * len(SHAPES)
GROWTH_BYTES = 24 << 20
"""For the record keeping of eight hundred steps, and what the allocator keeps: a leak of one group a reshape is far more."""


@pytest.mark.wide
def test_a_hundred_reshapes_leave_descriptors_threads_ports_and_memory_flat(workshop: Workshop, tmp_path: Path) -> None:
    reshapes = [
        {"step": EVERY_STEPS * number + 6, "pp_degree": pp_degree, "dp_degree": dp_degree}
        for number, (pp_degree, dp_degree) in enumerate(islice(cycle(SHAPES), RESHAPES), start=1)
    ]
    changes = {
        "reshapes": reshapes,
        "training": {"steps": EVERY_STEPS * (RESHAPES + 3)},
        "freeze": {"policy": {"name": "manual", "points": {}}},
        "placement": {"reshape_every_freeze": False},
        "checkpoint": {"every_steps": 0},
    }
    running = workshop.start(tmp_path / "run", changes, "--workers", "4")
    early = held_at(running, WARM, workshop)
    late = held_at(running, LATE, workshop)
    ended = running.end()
    assert ended.code == 0, ended.story()
    assert len(ended.events("reshape")) >= RESHAPES - 1, [event["step"] for event in ended.events("reshape")]
    assert early.keys() == late.keys(), "no worker was replaced"
    for process_id, before in early.items():
        after = late[process_id]
        assert after["descriptors"] <= before["descriptors"], (before, after)
        assert after["threads"] <= before["threads"], (before, after)
        assert after["ports"] <= before["ports"], (before, after)
        assert after["resident"] - before["resident"] < GROWTH_BYTES, (before, after)


def held_at(running: Running, reshapes: int, workshop: Workshop) -> dict[int, dict[str, int]]:
    """What each worker holds after so many reshapes: the least over one round of the shapes, by process id."""
    least: dict[int, dict[str, int]] = {}
    running.wait_until(lambda: reshaped(running) >= reshapes, f"{reshapes} reshapes")
    told = json.loads(workshop.command("status", str(running.folder), "--json").stdout)
    workers = [worker["process_id"] for worker in told["workers"]]
    until = reshaped(running) + len(SHAPES)
    while reshaped(running) < until:
        for process_id in workers:
            found = held_by(psutil.Process(process_id))
            known = least.setdefault(process_id, found)
            least[process_id] = {name: min(known[name], number) for name, number in found.items()}
        time.sleep(0.05)
    return least


def held_by(process: psutil.Process) -> dict[str, int]:
    listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "ports": len(listening),
        "resident": process.memory_info().rss,
    }


def reshaped(running: Running) -> int:
    return sum(event["kind"] == "reshape" for event in json_lines(running.folder / "events.jsonl"))
