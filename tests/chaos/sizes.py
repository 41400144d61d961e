"""Checks that the newest scale request of a run stands at its end, or was refused by an event."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frostline_contract.run_directory import RunDirectory
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.run.durable import read_state
from tests.chaos.acting import done
from tests.chaos.acts import SCALE, SIZES, Act
from tests.e2e.runs import json_lines

Asked = tuple[Act, dict[str, Any]]


def overlooked(folder: Path, acts: Sequence[Act], workers_per_pod: int) -> list[str]:
    """Return a complaint where the newest scale request of the run in `folder` was overlooked."""
    asked = [(act, said) for act, said in done(folder.parent, acts) if act.kind in SIZES]
    wanted = may_stand(asked, workers_per_pod)
    if not wanted:
        return []
    stands = read_state(LocalBackend(folder / "cluster").read()).requested_workers
    if stands in wanted:
        return []
    events = json_lines(RunDirectory(folder).events)
    if any(event["kind"] == "command" and "refused: a scale request" in event["reason"] for event in events):
        return []
    return [f"a scale request was overlooked: the run ends with a limit of {stands} workers, asked for were {sorted(wanted)}"]


def may_stand(asked: Sequence[Asked], workers_per_pod: int) -> set[int]:
    """Return the numbers of workers of which one stands when all requests are answered; empty: there was no scale request.

    That is the newest scale request's, or a later resize's. Of two commands by annotation, the later one may have replaced the
    earlier one before a controller saw it, so any of them may stand, or none.

    Args:
        asked: the requests that were made, with their records.
        workers_per_pod: the job's.
    """
    in_order = sorted(asked, key=lambda one: one[1]["time_seconds"])
    newest = max((place for place, (act, said) in enumerate(in_order) if _is_request(act, said)), default=None)
    if newest is None:
        return set()
    later = {act.value for act, _ in in_order[newest:] if act.kind != SCALE}
    return {in_order[newest][0].value * workers_per_pod} | later


def _is_request(act: Act, said: dict[str, Any]) -> bool:
    """Whether a controller can see the request: it replaced another number."""
    return act.kind == SCALE and said.get("replaced", act.value) != act.value
