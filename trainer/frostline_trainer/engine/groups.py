"""The process groups of one generation: the world that votes, this worker's pipeline row and its data-parallel column."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from frostline_contract.plan import Plan
from frostline_trainer.collectives import DEFAULT_TIMEOUT, Group, connect_store


@dataclass
class Groups:
    """moving: the members first, then leavers that still give state away; the same as `world` where there are none.

    A leaver has no world, row and column. store: the generation's store, None for a lone worker.
    """

    store: Any
    moving: Group
    world: Group | None
    row: Group | None
    column: Group | None

    def close(self) -> None:
        for group in (self.row, self.column, self.world, self.moving):
            if group is not None:
                group.close()
        self.store = None


def form_groups(plan: Plan, worker_id: str, own_store: Any, backend: str, timeout: timedelta = DEFAULT_TIMEOUT,
                host: str = "127.0.0.1") -> Groups:  # fmt: skip
    """Meet the plan's other participants. Raises RuntimeError where they do not all come within `timeout`.

    own_store: this worker's store server, used where it is the plan's global rank 0. host: the address that others reach it at.
    """
    participants, shape = plan.participants, plan.placement.shape
    index = participants.index(worker_id)
    store = own_store
    if index != 0 and len(participants) > 1:
        store = connect_store(plan.store_host, plan.store_port, timeout)
    name = f"g{plan.generation}"
    moving = Group(store, f"{name}/moving", index, len(participants), "gloo", timeout, host)
    if index >= shape.world_size:
        return Groups(store, moving, None, None, None)
    pp_rank, dp_rank = shape.pp_rank(index), shape.dp_rank(index)
    world = moving if not plan.leavers else Group(store, f"{name}/world", index, shape.world_size, "gloo", timeout, host)
    row = Group(store, f"{name}/row{dp_rank}", pp_rank, shape.pp_degree, backend, timeout, host)
    column = Group(store, f"{name}/column{pp_rank}", dp_rank, shape.dp_degree, backend, timeout, host)
    return Groups(store, moving, world, row, column)


def lone_groups() -> Groups:
    """The groups of a single worker: no sockets."""
    group = Group(None, "alone", 0, 1)
    return Groups(None, group, group, group, group)
