"""The run epoch's object on a file system: read, raised and closed by a result, each by exclusive creation (docs/protocols.md
5.5).

    plan durable, naming run_epoch and checkpoint  ->  raise_epoch  ->  announce

A successor that finds such a plan whose run epoch has not begun repeats `raise_epoch`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frostline_contract.durable_files import create_durably
from frostline_contract.epochs import RunEpoch, read_epochs
from frostline_contract.plan import Plan
from frostline_controller.cluster.backend import Conflict


def current_epoch(root: Path) -> RunEpoch:
    """Return the newest version of the object; run epoch 0 where none was ever written."""
    return read_epochs(root)[-1]


def raise_epoch(root: Path, plan: Plan) -> RunEpoch:
    """Begin run epoch plan.run_epoch from plan.checkpoint_path ("" for the initial weights). Returns the newest version.

    `plan` is durable and not announced yet. Does nothing where the run epoch has begun with this plan. Raises Conflict where it
    has begun with another plan, is not the one after the current, or where the run has its result; OSError.
    """
    generation = str(plan.generation)
    while True:
        now = current_epoch(root)
        if (now.run_epoch, now.plan) == (plan.run_epoch, generation):
            return now
        if now.run_epoch != plan.run_epoch - 1:
            raise Conflict(f"plan {generation} begins run epoch {plan.run_epoch}; it is {now.run_epoch}, begun by {now.plan!r}")
        if now.result is not None:
            raise Conflict(f"plan {generation} begins run epoch {plan.run_epoch}, but the run has ended: {dict(now.result)}")
        _write(root, now.raised(plan.run_epoch, plan.checkpoint_path, generation))


def claim_result(root: Path, run_epoch: int, result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make `result` the run's, once. Returns the result that counts: this one, or an earlier one.

    Raises Conflict where the run epoch is over, since then another world goes on with the run and claims its result; OSError.
    """
    while True:
        now = current_epoch(root)
        if now.run_epoch != run_epoch:
            raise Conflict(f"a result of run epoch {run_epoch} comes too late: it is {now.run_epoch}, begun by {now.plan!r}")
        if now.result is not None:
            return now.result
        _write(root, now.with_result(result))


def reopen(root: Path, run_epoch: int) -> None:
    """Withdraw the result of a stopped run, which goes on in the same run epoch. Raises Conflict, OSError."""
    while True:
        now = current_epoch(root)
        if now.run_epoch != run_epoch:
            raise Conflict(f"run epoch {run_epoch} is over: it is {now.run_epoch}, begun by {now.plan!r}")
        if now.result is None:
            return
        _write(root, now.with_result(None))


def _write(root: Path, version: RunEpoch) -> bool:
    """Write one version whole, where it does not exist yet. False where another process has written it: read again."""
    return create_durably(Path(root) / version.file(), version.text())
