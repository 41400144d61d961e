"""Groups of a plan for tests and benchmarks, formed by callers without interruption."""

from datetime import timedelta

from frostline_contract.plan import Plan
from frostline_trainer.generations.formation import Formation
from frostline_trainer.generations.groups import Groups
from frostline_trainer.transport.collectives import DEFAULT_TIMEOUT
from frostline_trainer.transport.traffic import Traffic


def form_groups(plan: Plan, worker_id: str, backend: str = "gloo", timeout: timedelta = DEFAULT_TIMEOUT,
                host: str = "127.0.0.1", machine: str = "", traffic: Traffic | None = None) -> Groups:  # fmt: skip
    """Meet the plan's other participants. Raises RuntimeError as `Formation.form`."""
    return Formation(plan, worker_id, backend, timeout, host, machine, traffic).form()
