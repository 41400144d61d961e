"""The imports of a cold pod before it can join: the run's own family and data source, and no large package around them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from frostline_contract.job import dump_job, load_job
from frostline_trainer.data.sources.digits import read_digits

DIGITS_JOB = Path(__file__).parents[3] / "examples" / "image_classification" / "digits.yaml"
UNWANTED = (
    "sklearn", "pandas", "pyarrow", "datasets", "matplotlib", "scipy", "redis", "triton", "torch._dynamo.utils",
    "torch.distributed.tensor", "peft", "accelerate",
)  # fmt: skip
"""Packages that a worker of the digits job must not import: each costs a replacement a part of the time that it has."""
BUILT = (
    "import sys, gc; from frostline_trainer.process.preload import warm_up; warm_up(); before = set(sys.modules)\n"
    "from frostline_contract.job import load_job; from frostline_trainer.process.setup import build_context\n"
    "from frostline_trainer.profile import worker_profile\n"
    "worker_profile(build_context(load_job(sys.argv[1], ['training.device=cpu'])), [])\n"
    "found = sorted(set(sys.modules) - before)\n"
    "named = ('torch', 'transformers', 'peft', 'frostline_trainer')\n"
    "print(gc.isenabled(), *(one for one in found if one.split('.')[0] in named))\n"
    "print(*sys.modules)"
)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], set[str]]:
    """Return (the first worker's own imports, all modules) of a pod of the digits job that has built its model."""
    return imports_of(tmp_path_factory.mktemp("run"), [])


def imports_of(folder: Path, overrides: list[str]) -> tuple[list[str], set[str]]:
    """Return (the first worker's own imports, all modules) of a pod of the digits job with overrides that has built its model."""
    job = folder / "job.yaml"
    job.write_text(dump_job(load_job(DIGITS_JOB, overrides)))
    env = {**os.environ, "FROSTLINE_RUN_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", BUILT, job], env=env, capture_output=True, text=True, check=True)
    later, everything = done.stdout.splitlines()
    return later.split(), set(everything.split())


def test_a_cold_pod_imports_its_own_family_and_no_large_package(imported: tuple[list[str], set[str]]) -> None:
    everything = imported[1]
    assert "transformers.models.vit.modeling_vit" in everything
    others = [f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "llama")]
    assert sorted({*UNWANTED, *others} & everything) == []


def test_a_fork_finds_everything_imported_and_the_collector_running(imported: tuple[list[str], set[str]]) -> None:
    collecting, *later = imported[0]
    assert collecting == "True"
    assert set(later) <= {"torch.profiler._cupti_monitor", "torch.utils._device"}, "two small files"


LEFT_OUT = (
    "import sys; from frostline_trainer.process.preload import warm_up; warm_up(); from pathlib import Path\n"
    "import torch; from transformers import GPT2Config, GPT2LMHeadModel\n"
    "model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=32, n_positions=16)).eval()\n"
    "tokens, mask = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([[0, 1, 1], [1, 1, 1]])\n"
    "before = model(tokens, attention_mask=mask).logits\n"
    "model.save_pretrained(sys.argv[1]); read = GPT2LMHeadModel.from_pretrained(sys.argv[1]).eval()\n"
    "assert torch.equal(read(tokens, attention_mask=mask).logits, before)\n"
    "assert 'torch._dynamo.utils' not in sys.modules\n"
    "graphs = []\n"
    "def count(graph, inputs): graphs.append(graph); return graph.forward\n"
    "compiled = torch.compile(lambda x: torch.sin(x) + 1, backend=count)\n"
    "assert torch.equal(compiled(torch.ones(2)), torch.sin(torch.ones(2)) + 1) and len(graphs) == 1\n"
    "import transformers.masking_utils as masks\n"
    "with masks.TransformGetItemToIndex(): pass\n"
    "print(sys.modules['torch._dynamo'].__file__)"
)


def test_what_is_left_out_is_there_for_who_uses_it(tmp_path: Path) -> None:
    """A whole model runs, is saved and read without the compiler; a job that compiles gets the real one."""
    env = {**os.environ, "FROSTLINE_RUN_DIR": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LEFT_OUT, str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("torch/_dynamo/__init__.py")


@pytest.mark.parametrize("text", ["", "model: {family: nobody}\ndata: {source: digits}\n", "model: [", "model: {family: vit}\n"])
def test_a_job_file_that_cannot_be_used_is_the_workers_matter(text: str, tmp_path: Path) -> None:
    from frostline_trainer.process.warming import import_for

    if text:
        (tmp_path / "job.yaml").write_text(text)
    import_for(str(tmp_path))
    assert sys.modules.get("transformers.models.vit.modeling_vit") is not None or "nobody" in text
    assert sys.modules.get("scipy", np) is not None, "it is hidden only meanwhile"


def test_scikit_learn_is_hidden_with_scipy_which_it_needs() -> None:
    """Versions of transformers that import it where they find it cannot be imported otherwise."""
    words = ("from frostline_trainer.process.lean_imports import lean_imports\n"
             "with lean_imports():\n    from transformers.utils import is_sklearn_available\n    print(is_sklearn_available())\n"
             "import sklearn.metrics")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def test_a_run_with_adapters_imports_peft_before_its_workers_are_there(tmp_path: Path) -> None:
    later, everything = imports_of(tmp_path, ["model.adapters={blocks: last half}"])
    assert "peft.tuners.lora" in everything
    assert [one for one in later if one.startswith("peft")] in ([], ["peft.utils.transformers_weight_conversion"])
    assert not {"scipy", "torch.distributed.tensor", "torch._dynamo.utils", "datasets"} & everything


def test_the_digits_are_those_that_scikit_learn_loads() -> None:
    from sklearn.datasets import load_digits

    found, wanted = read_digits(load_job(DIGITS_JOB), None, "train"), load_digits()
    assert (found.labels.dtype, found.labels.tolist()) == (np.int64, wanted.target.tolist())
    pixels = np.stack([found.pixels(index)[0] for index in range(len(found))])
    assert pixels.dtype == np.float32 and np.array_equal(pixels, (wanted.images / 16).astype(np.float32))
