"""Compiled units (`training.compile`): a unit has equal bits in any stage and process, whatever is computed beside it."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frostline_contract.job import load_job
from frostline_trainer.process.setup import build_context
from frostline_trainer.step import compiling
from frostline_trainer.step.compiling import compiler_versions
from frostline_trainer.step.run_state import RunState
from tests.exact_cases import Case, build_case

SECONDS = 600.0
DIGITS = Path(__file__).parents[2] / "examples/image_classification/digits.yaml"
CUTS = {"one stage": (0, 8), "three stages": (0, 1, 5, 8)}


def compute(family: str, cut: str, backend: str) -> None:
    """Print the digest of a forward and backward through all units, in stages; runs in a process of its own."""
    import hashlib

    from frostline_trainer.step.building import stage_settings
    from frostline_trainer.step.stage import Stage

    compiling.BACKEND = backend
    torch.set_num_threads(1)
    context = build_case(Case(family))
    settings = replace(stage_settings(context), dropout=True, compiled=True)
    bounds = CUTS[cut]
    stages = [Stage(context.cut.units[low:high], low, 0, settings) for low, high in zip(bounds, bounds[1:], strict=False)]
    digest = hashlib.sha256()
    for micro_batch in range(2):
        inputs = context.on_device(context.data.train.collate([2 * micro_batch, 2 * micro_batch + 1], [0, 0]))
        entries, outputs, hidden = [], [], None
        for stage in stages:
            entries.append(hidden)
            outputs.append(stage.run_trainable(hidden, inputs, 1, micro_batch))
            hidden = outputs[-1].detach().requires_grad_()
        gradient = torch.ones_like(outputs[-1])
        for entry, output in zip(reversed(entries), reversed(outputs), strict=True):
            output.backward(gradient)
            gradient = entry.grad if entry is not None else None
        digest.update(outputs[-1].detach().numpy().tobytes())
    for unit in context.cut.units:
        for parameter in unit.parameters():
            digest.update(parameter.grad.numpy().tobytes())
    print(digest.hexdigest())


@pytest.mark.wide
@pytest.mark.parametrize("family", ["vit", "gpt2_tied", "llama"])
def test_a_unit_has_one_result_in_any_stage_and_process(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With code generation where this machine has a C++ compiler, else with the compiler's earlier passes alone."""
    backend = "inductor" if shutil.which("g++") else "aot_eager"
    found = {}
    for number, cut in enumerate(CUTS):
        # Nothing is shared between the processes: each makes its own kernels.
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / str(number)))
        script = f"from tests.integration.test_compiled import compute; compute({family!r}, {cut!r}, {backend!r})"
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=False)
        assert ended.returncode == 0, ended.stderr
        found[cut] = ended.stdout.strip()
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("family", ["vit", "bert_classification", "gpt2_tied", "llama"])
def test_each_unit_of_the_built_in_families_is_one_graph(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without generated code: what the compiler makes of a unit computes the unit, for texts with padding too."""
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    context = build_case(Case(family, dropout=0.0))
    inputs, hidden = context.on_device(context.data.train.collate([0, 1], [0, 0])), None
    for unit in (*context.cut.units[:2], context.cut.units[-1]):
        with torch.no_grad():
            found, hidden = compiling.compiled(unit)(hidden, inputs), unit(hidden, inputs)
        assert torch.allclose(found, hidden, atol=1e-6)  # a mask that hides nothing is given here, and left out there


def test_what_cannot_be_compiled_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "BACKEND", "eager")

    class Breaks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1  # the branch depends on values

    with pytest.raises(Exception, match=r"(?i)data-dependent|graph.break"):
        compiling.compiled(Breaks())(torch.ones(3))


@pytest.mark.parametrize(("device_type", "variable", "program"), [("cpu", "CXX", "g++"), ("cuda", "CC", "gcc")])
def test_a_machine_without_a_compiler_is_named_before_any_data_is_loaded(
    device_type: str, variable: str, program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=rf"this machine has neither {re.escape(program)} nor clang"):
        compiling.check_compiler(device_type)
    job = load_job(str(DIGITS), ["training.compile=true", "training.device=cpu"])
    with pytest.raises(ValueError, match=r"neither g\+\+ nor clang"):
        build_context(job)
    (tmp_path / program).touch(mode=0o755)
    compiling.check_compiler(device_type)


def test_the_history_and_the_probe_name_it_only_where_it_is_on() -> None:
    context = build_case(Case("vit"))
    assert context.numerics == ""
    training = context.job.training.model_copy(update={"compile": True})
    context.job = context.job.model_copy(update={"training": training})
    assert context.numerics == compiler_versions("cpu")
    assert context.numerics.startswith("compiled for ")
    assert RunState().chain(1, False) == RunState().chain(1, False, "") != RunState().chain(1, False, context.numerics)
