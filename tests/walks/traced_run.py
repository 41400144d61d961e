"""The run in which the walks are measured: it freezes, reshapes, fills and reads the cache, loses a worker, and goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.runs import Ended, Workshop, warm_preload
from tests.walks.walks import write_acts

SITE = Path(__file__).parent / "site"
KILLED_AT, LAST = 35, 38
"""The run ends before the lost worker's successor can be there: else it would depend on timings whether state moves to it."""
CHANGES = {
    "training": {"steps": LAST},
    # Shapes of the planner's choice would depend on timings, and with them whether state moves.
    "placement": {"pp_degree": 1, "dp_degree": 2, "reshape_every_freeze": False},
    "reshapes": [{"step": 14, "pp_degree": 2, "dp_degree": 1}, {"step": 22, "pp_degree": 1, "dp_degree": 2}],
    "faults": [{"kind": "kill_worker", "step": KILLED_AT, "worker": 1}],
}


@contextmanager
def traced_run(folder: Path) -> Iterator[tuple[Ended, Path]]:
    """Yield the ended run and the folder of its processes' records."""
    recorded = folder / "walks"
    recorded.mkdir(parents=True)
    write_acts(recorded)
    env = {"FROSTLINE_WALKS": str(recorded), "PYTHONPATH": str(SITE)}
    with warm_preload(**env) as preload:
        workshop = Workshop(preload)
        workshop.env.update(env)
        try:
            yield workshop.run(folder / "run", CHANGES, "--workers", "2"), recorded
        finally:
            workshop.close()
