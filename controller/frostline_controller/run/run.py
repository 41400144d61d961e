"""One run as a controller leads it: its facts, its durable store and its outbox, made together."""

import time
from collections.abc import Callable
from pathlib import Path

from frostline_contract.job import Job
from frostline_controller.cluster.backend import ClusterBackend, ClusterState
from frostline_controller.run.durable import DurableState, DurableStore
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.pods import Pods
from frostline_controller.run.store import RunStore


class Run:
    """The parts from which a controller is built. A user of the run receives the parts that it needs, not this object.

    Args:
        job: the job that the run follows.
        folder: the run directory.
        backend: the cluster.
        durable: reads and writes the durable state of this controller's incarnation.
        state, cluster: the states that `durable` found when it took over.
        clock, parallel_slots, cache_address: as in `RunFacts`.
        may_write: as in `RunStore`.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        backend: ClusterBackend,
        durable: DurableStore,
        state: DurableState,
        cluster: ClusterState,
        *,
        clock: Callable[[], float] = time.monotonic,
        parallel_slots: int | None = None,
        cache_address: str = "",
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.backend = backend
        self.store = RunStore(job, folder, durable, state, may_write)
        self.facts = RunFacts(job, self.store, cluster, clock, parallel_slots, cache_address)
        self.outbox = Outbox(self.facts, self.store, backend)
        self.pods = Pods(self.facts, self.store, backend)

    def close(self) -> None:
        """Close the run's files."""
        self.store.close()
