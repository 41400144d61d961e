"""Groups of a plan for tests and benchmarks: met by callers that nobody interrupts."""

from datetime import timedelta

from frostline_contract.plan import Plan
from frostline_trainer.generations.groups import DEFAULT_TIMEOUT, Formation, Groups


def form_groups(plan: Plan, worker_id: str, backend: str = "gloo", timeout: timedelta = DEFAULT_TIMEOUT,
                host: str = "127.0.0.1", machine: str = "") -> Groups:  # fmt: skip
    """Meet the plan's other participants. Raises RuntimeError as `Formation.form`."""
    return Formation(plan, worker_id, backend, timeout, host, machine).form()
