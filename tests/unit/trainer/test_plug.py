"""A worker's plug: nothing by default, planned faults if its job has some, or the plug that the environment names."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from frostline_contract.job import parse_job
from frostline_contract.plan import GenerationId, Plan
from frostline_trainer.faults.of_worker import PlannedFaults
from frostline_trainer.generations.plan_table import PlanTable
from frostline_trainer.process.identity import Identity
from frostline_trainer.process.plug import PLUG, Parts, Plug, plug_of
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.run_state import RunState
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout
from tests.integration.scripted_worker import job_values

FAULT = {"kind": "raise", "step": 5}
WHOLE = torch.arange(6.0).reshape(2, 3)


def test_nothing_is_plugged_in_by_itself() -> None:
    plug = plug_of({}, parse_job(job_values()))
    assert type(plug) is Plug
    assert plug.activation(WHOLE) is WHOLE and plug.rows_to_store(WHOLE) is WHOLE
    assert not plug.silences({"FROSTLINE_CUT": __file__})


def test_a_job_that_plans_faults_has_them_plugged_in() -> None:
    assert isinstance(plug_of({}, parse_job(job_values(faults=[FAULT]))), PlannedFaults)


def test_the_environment_names_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_plug.py").write_text("def plug():\n    return 'mine'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plug_of({PLUG: "my_plug"}, parse_job(job_values(faults=[FAULT]))) == "mine"


def test_a_module_that_is_not_there_is_named_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"FROSTLINE_PLUG names 'no_such_plug'.*install it where the workers run"):
        plug_of({PLUG: "no_such_plug"})


def test_a_process_of_production_does_not_import_faults() -> None:
    started = ", ".join(f"frostline_trainer.process.{name}" for name in ("agent", "preload", "worker", "exit_reporter"))
    code = f"import sys, {started}; print([name for name in sys.modules if name.startswith('frostline_trainer.faults')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def attached(tmp_path: Path, **fault: object) -> tuple[PlannedFaults, Parts]:
    """Return planned faults attached to a worker that is a lone member and has done 4 steps."""
    identity = Identity(tmp_path, "nowhere", "t", "trainer-0", "w0", "node", "127.0.0.1")
    job = parse_job(job_values(faults=[{"kind": "flip", "step": 5, **fault}]))
    plans = PlanTable("w0")
    generation = GenerationId(incarnation=1, counter=1)
    plans.receive(Plan(generation=generation, lineage=0, start="fresh", freeze_point=0, placement=Layout(1, 1).placement(0)))
    plans.start_forming()
    plans.formed(generation)
    plans.entering(generation)
    plans.entered(generation, as_member=True)
    parts = Parts(identity, job, build_case(Case("vit")), RunState(step=4), plans, PhaseClock())
    plug = PlannedFaults()
    plug.attach(parts)
    return plug, parts


@pytest.mark.parametrize(("what", "phase"), [("activation", "load"), ("cached_value", "load"), ("gradient", "load")])
def test_a_wrong_bit_of_one_step_is_of_that_step(tmp_path: Path, what: str, phase: str) -> None:
    plug, parts = attached(tmp_path, what=what)

    def wrong() -> set[str]:
        parameter = torch.nn.Parameter(torch.zeros(3))
        parameter.grad = torch.ones(3)
        plug.gradient([parameter])
        found = {"activation": plug.activation(WHOLE.clone()), "cached_value": plug.rows_to_store(WHOLE)}
        changed = {name for name, rows in found.items() if not torch.equal(rows, WHOLE)}
        return changed if torch.equal(parameter.grad, torch.ones(3)) else {*changed, "gradient"}

    assert wrong() == set()
    parts.clock.enter(phase)
    assert wrong() == {what}
    plug.end_of_schedule()
    parts.state.step = 5
    assert wrong() == set()


def test_a_weight_flips_once_after_its_step(tmp_path: Path) -> None:
    _, parts = attached(tmp_path, what="weight")
    last = next(iter(parts.context.cut.units[-1].parameters()))
    before = last.detach().clone()
    parts.clock.enter("committed")
    assert torch.equal(last, before), "step 4"
    parts.state.step = 5
    for _ in range(2):
        parts.clock.enter("committed")
    assert (last != before).sum() == 1
