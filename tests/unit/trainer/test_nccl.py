"""The trainer's requests to NCCL's library before it makes a communicator."""

import ast
import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from frostline_trainer.generations.formation import Formation
from frostline_trainer.process import worker
from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import open_store
from tests.hand_made_plans import Layout, lone_plan

ROOT = Path(__file__).parents[3]


def test_the_librarys_watchdog_is_quiet_unless_the_user_says_otherwise() -> None:
    environment = {"TORCH_NCCL_ENABLE_MONITORING": "1"}
    nccl.quiet(environment)
    assert environment == {**nccl.ENVIRONMENT, "TORCH_NCCL_ENABLE_MONITORING": "1"}
    assert environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_a_worker_sets_it_first_and_the_guide_lists_it() -> None:
    body = ast.parse(inspect.getsource(worker.main)).body[0].body  # type: ignore[attr-defined]
    first = next(statement for statement in body if not isinstance(getattr(statement, "value", None), ast.Constant))
    assert ast.unparse(first) == "nccl.quiet()", "threads that read the environment come after it"
    listed = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", (ROOT / "docs" / "clusters.md").read_text(), re.MULTILINE))
    assert {name: listed.get(name) for name in nccl.ENVIRONMENT} == nccl.ENVIRONMENT


def test_nothing_of_nccl_fails_because_a_member_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch ends a process that has waited longer than a work's timeout; the verdict on a hang is the controller's."""
    if not dist.is_nccl_available():
        pytest.skip("this build of torch has no NCCL")
    made: list[Any] = []

    class Recording:
        """Records its options, which are the library's own; the rest needs a GPU."""

        Options = dist.ProcessGroupNCCL.Options

        def __init__(self, store: Any, index: int, size: int, options: Any) -> None:
            made.append(options)

    monkeypatch.setattr(dist, "ProcessGroupNCCL", Recording)
    nccl.make_communicator(open_store()[0], "name", 0, 2, 4)
    (options,) = made
    assert options._timeout >= timedelta(hours=12)
    assert (options.config.blocking, options.config.max_ctas, options.group_name) == (0, 4, "name")


def test_a_lone_worker_makes_no_communicator() -> None:
    groups = Formation(lone_plan(Layout(1, 1).placement(0)), "w0", "nccl").form()
    assert groups.transport is not None and groups.world is not None
    assert (groups.transport.size, groups.world.size, groups.along("dp").size) == (1, 1, 1)
    groups.interrupt()
    groups.close()
