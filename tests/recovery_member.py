"""The functions that warm workers run in tests of failures: the real worker, over a case's rows instead of a data set."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from frostline_contract.job import Job
from frostline_contract.job.cluster import Fault
from frostline_trainer.generations.entering import Entered
from frostline_trainer.generations.worker import Worker
from frostline_trainer.process.identity import Identity
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.due import Due, VotePassed
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.unit_state import export_piece, unit_digest
from tests.exact_cases import Case, build_case, job_of

CHECKPOINT_STEPS = 4
INTERVAL_STEPS, LAG_STEPS = 4, 3


@dataclass
class Lived:
    """The state of a worker when it was told to end. pieces: digest of the state of each piece that is whole here.

    tags: the state tag of each piece.
    """

    code: int
    state: dict[str, Any]
    pieces: dict[int, str]
    tags: dict[int, str]
    resources: list[tuple[int, int]] = field(default_factory=list)


def job_with(case: Case, faults: list[dict[str, Any]], pods: int, **sections: dict[str, Any]) -> Job:
    """Return the case's job with intervals, guard readings, checkpoints and faults."""
    job = job_of(case)
    changes = {
        "freeze": {"interval_steps": INTERVAL_STEPS},
        "decisions": {"lag_steps": LAG_STEPS, "wait_seconds": 60.0},
        "checkpoint": {"every_steps": CHECKPOINT_STEPS},
        "controller": {"heartbeat_seconds": 0.1, "reshape_deadline_seconds": 60.0},
        "placement": {"workers": pods},
    }
    for name, values in {**changes, **sections}.items():
        job = job.model_copy(update={name: getattr(job, name).model_copy(update={**changes.get(name, {}), **values})})
    # Unchecked: tests also kill in the middle of an update, a phase that a user's fault cannot name.
    return job.model_copy(update={"faults": tuple(Fault.model_construct(**fault) for fault in faults)})


class CaseWorker(Worker):
    """A worker that trains a case."""

    def __init__(self, identity: Identity, case: Case, job: Job) -> None:
        super().__init__(identity, job)
        self._case = case
        self.resources: list[tuple[int, int]] = []

    def build(self) -> RunContext:
        context = build_case(self._case)
        context.job = self.job
        return context

    def _act(self, entered: Entered, due: Due) -> None:
        super()._act(entered, due)
        if isinstance(due, VotePassed) and due.first:
            self.resources.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))


def live(case: Case, number: int, folder: str, node: str, faults: list[dict[str, Any]], pods: int,
         sections: dict[str, dict[str, Any]]) -> Lived:  # fmt: skip
    """Run a worker from start to end, against the controller whose address is in `folder`."""
    torch.set_num_threads(1)
    identity = Identity(
        run_dir=Path(folder),
        controller=str(Path(folder) / "controller.address"),
        token="any",
        pod_name=f"trainer-{number}",
        worker_id=f"w{number}",
        node=node,
        host="127.0.0.1",
    )
    worker = CaseWorker(identity, case, job_with(case, faults, pods, **sections))
    code = worker.run()
    return Lived(code, _described(worker.state), *_held(worker.context), worker.resources)


def _described(state: RunState) -> dict[str, Any]:
    """Return the run state that all members have in common, without parts that depend on the time of acknowledgements."""
    return {name: value for name, value in state.dump().items() if name not in ("records", "statistics")}


def _held(context: RunContext) -> tuple[dict[int, str], dict[int, str]]:
    tags, table = context.holdings.all(), context.pieces
    states = {piece: export_piece(table, piece, context.cut.units[table.unit_of(piece)], context.moments) for piece in tags}
    return {piece: unit_digest(state).hex() for piece, state in states.items()}, {piece: str(tag) for piece, tag in tags.items()}
