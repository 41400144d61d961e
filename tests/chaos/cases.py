"""A case: one job with faults and acts, drawn from one seed (`drawing`) or written down (`fixed`)."""

from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from frostline_contract.job.cluster import Fault
from frostline_contract.schedules import BUILT_IN
from tests.chaos.acts import CHANGES_NUMERICS, Act
from tests.chaos.jobs import LAG, VARIANTS

SILENT_KINDS = ("stop", "deadlock", "device_hang", "cut_node")
"""Kinds of faults that only a deadline finds."""
QUICK_CLOCKS = {"dead_after_seconds": 3.0, "hang_floor_seconds": 3.0}
PATIENT_CLOCKS = {"dead_after_seconds": 20.0, "hang_floor_seconds": 60.0}
"""Clocks for cases without silent faults, so that a busy machine does not look like a failure."""
STALLED_CLOCKS = {"dead_after_seconds": 20.0, "hang_floor_seconds": 2.0}
STALLED_SECONDS = 24.0
"""Longer than the deadline of a phase without history by these clocks, which stands for the ten minutes of the default."""
CUT_SECONDS_LONG, CUT_SECONDS_SHORT = 8.0, 0.7
LATE_WAIT_SECONDS = 3.0
LATE_CUT_SECONDS = 8.0
"""A cut that decisions are not waited for; on a busy machine a decision without one comes within the wait."""
OTHER_ROOT = "../checkpoints"
"""A folder for checkpoints beside the run directory."""


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        seed: replays it (None: a fixed case).
        aim: the purpose for which it was drawn; the oracle decides the actual outcome.
        shard: how replicas share out the state.
        reshapes_shard: the same of each reshape, in their order; empty: as `shard`.
        checkpoint_uri: the folder for checkpoints; None: in the run directory.
        cache_shards: the number of Redis servers.
        tp: workers that share each stage tile by tile.
        tensor_rows: how they have a micro-batch's samples.
        reshapes_tp: the same of each reshape, in their order; empty: each worker has its stage to itself.
        depth: levels of these workers; tp are the columns then.
        reshapes_depth: the same of each reshape, in their order; empty: one level.
        slices: into how many messages a micro-batch's token cells are grouped; None: the planner's choice.
        reshapes_slices: the same of each reshape, in their order; None, or empty: as `slices`.
    """

    name: str
    seed: int | None
    variant: str
    workers: int
    shape: tuple[int | None, int | None]
    faults: tuple[Fault, ...]
    aim: str = "whole"
    reshapes: tuple[tuple[int, int, int], ...] = ()
    checkpoint_every: int = 10
    pods_per_node: int = 1
    buddies: bool = True
    cache: bool = False
    reshape_every_freeze: bool = False
    wait_seconds: float = 120.0
    acts: tuple[Act, ...] = ()
    schedule: str = "auto"
    virtual_stages: int = 1
    workers_per_pod: int = 1
    min_workers: int = 1
    objective: str = "throughput"
    audit: float = 0.01
    audit_every: int = 0
    worker_cpus: float | None = None
    clocks: dict[str, float] = field(default_factory=lambda: dict(PATIENT_CLOCKS))
    shard: str = "none"
    reshapes_shard: tuple[str, ...] = ()
    checkpoint_uri: str | None = None
    cache_shards: int = 1
    tp: int = 1
    tensor_rows: str = "whole"
    reshapes_tp: tuple[int, ...] = ()
    depth: int = 1
    reshapes_depth: tuple[int, ...] = ()
    slices: int | None = None
    reshapes_slices: tuple[int | None, ...] = ()

    def job(self) -> dict[str, Any]:
        """Return the job file's values."""
        values = VARIANTS[self.variant].values
        return {
            **values,
            "training": {**values["training"], **({"audit_every_steps": self.audit_every} if self.audit_every else {})},
            "decisions": {"lag_steps": LAG, "wait_seconds": self.wait_seconds},
            "placement": {
                "workers": self.workers,
                "workers_per_pod": self.workers_per_pod,
                "min_workers": self.min_workers,
                "objective": self.objective,
                "schedule": self.schedule,
                "virtual_stages": self.virtual_stages,
                "pp_degree": self.shape[0],
                "dp_degree": self.shape[1],
                "pods_per_node": self.pods_per_node,
                "buddies": self.buddies,
                "reshape_every_freeze": self.reshape_every_freeze,
                "worker_cpus": self.worker_cpus,
                "shard": self.shard,
                "tp_degree": self.tp,
                "tp_depth": self.depth,
                "tensor_rows": self.tensor_rows,
                "slices": self.slices,
            },
            "elastic": {"cache": self.cache},
            "cache": {
                "use": "always" if self.cache else "never",
                "memory_bytes": 64 << 20,
                "shadow_audit_fraction": self.audit,
                "shards": self.cache_shards,
            },
            # So many that all manifests stay: the oracle reads from them when each checkpoint was complete.
            "checkpoint": {"every_steps": self.checkpoint_every, "keep_last": 1000, "uri": self.checkpoint_uri},
            "controller": {
                "heartbeat_seconds": 0.1,
                "join_settle_seconds": 0.2,
                "join_pause_seconds": 0.5,
                "start_timeout_seconds": 60.0,
                # Five faults may hit one step.
                "fruitless_recoveries_max": 12,
                **self.clocks,
            },
            "reshapes": [
                {
                    "step": step,
                    "pp_degree": pp,
                    "dp_degree": dp,
                    "shard": shard,
                    "tp_degree": tp,
                    "tp_depth": depth,
                    "slices": slices,
                }
                | self._of_reshapes
                for (step, pp, dp), shard, tp, depth, slices in zip(
                    self.reshapes,
                    self.reshapes_shard or repeat(self.shard),
                    self.reshapes_tp or repeat(1),
                    self.reshapes_depth or repeat(1),
                    self.reshapes_slices or repeat(None),
                    strict=False,
                )
            ],
            "faults": [fault.model_dump(exclude_defaults=True) for fault in self.faults],
        }

    @property
    def _of_reshapes(self) -> dict[str, str]:
        without_bubbles = self.schedule in BUILT_IN and BUILT_IN[self.schedule].splits
        return {"schedule": self.schedule} if without_bubbles else {}

    def story(self) -> str:
        """Return the faults and acts in one line."""
        return ", ".join([*(fault_text(fault) for fault in self.faults), *(act.text() for act in self.acts)])

    @property
    def changes_numerics(self) -> bool:
        """Whether a person's decision changes the numerics: then the results are compared with a replay."""
        return any(act.kind in CHANGES_NUMERICS for act in self.acts)


def checkpoint_root(run: Path, job: dict[str, Any]) -> Path:
    """Return the folder for the checkpoints of a run, by its job file's values."""
    return run / (job.get("checkpoint", {}).get("uri") or "checkpoints")


def fault_text(fault: Fault) -> str:
    where = f" {fault.phase}" if fault.phase != Fault.model_fields["phase"].default else ""
    who = "" if fault.kind in ("kill_redis", "kill_cache_server", "kill_controller") else f" w{fault.worker}"
    return f"{fault.kind}{who}@{fault.step}{where}"


def planned(kind: str, step: int, worker: int, phase: str = "", seconds: float = 5.0) -> Fault:
    """Return a fault of the job file. phase: "" for kinds with a place of their own."""
    placed = {"phase": phase} if phase else {}
    return Fault(kind=kind, step=step, worker=worker, seconds=seconds, **placed)
