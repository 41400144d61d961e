"""The start-up check of tiles: it finds kernels whose rows depend on their place or address, and leaves units as they were."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from frostline_trainer.prefix.tile_check import find_address_dependence, find_place_dependence, measure_sample_tiles
from frostline_trainer.process.kernels import kernel_settings, settle_kernels
from frostline_trainer.process.setup import check_tiles
from frostline_trainer.step.alignment import align_weights, aligned, is_aligned
from frostline_trainer.step.stage import Stage, StageSettings
from tests.exact_cases import Case, build_case
from tests.uneven_kernel import planted

FAMILIES = ("vit", "bert_classification", "gpt2_tied", "llama")


@pytest.mark.parametrize("family", ["vit", "bert_classification", "llama"])
def test_a_kernel_that_depends_on_a_rows_place_is_found_and_named(family: str) -> None:
    with planted():
        found = find_place_dependence(build_case(Case(family)))
    assert "gives a sample other bits in a tile of 2 x 1" in found and "reversed (float32)" in found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "mixed_bfloat16"])
def test_where_nothing_is_found_a_sample_has_one_set_of_bits_in_any_tile(family: str, dtype: str) -> None:
    """With any kernels of this machine: the check may find a dependence, but it must not miss one."""
    context = build_case(Case(family, dtype))
    if find_place_dependence(context):
        return  # seen: MKL's float64 on AVX2, and float32 in its COMPATIBLE mode
    settings = StageSettings(seed=0, dropout=False, checkpointing=False, precision=context.precision,
                             num_units=context.num_units, device=torch.device("cpu"))  # fmt: skip
    stage = Stage(context.cut.units[:4], 0, 4, settings)
    draw = torch.Generator().manual_seed(1)
    seen: dict[int, torch.Tensor] = {}
    for _ in range(30):
        tile = torch.randint(0, 12, (2,), generator=draw).tolist()
        rows = stage.run_frozen(None, context.on_device(context.data.train.collate(tile, [0, 0])))
        for sample, row in zip(tile, rows, strict=True):
            assert torch.equal(seen.setdefault(sample, row).view(torch.uint8), row.view(torch.uint8))


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch was built without MKL")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "mixed_bfloat16"])
def test_in_the_mode_that_is_set_addresses_do_not_matter(family: str, dtype: str) -> None:
    assert find_address_dependence(build_case(Case(family, dtype))) == ""


def test_the_finding_becomes_a_part_of_the_probe() -> None:
    even, uneven = build_case(Case("vit")), build_case(Case("vit"))
    even.probe_digest = uneven.probe_digest = "p"
    check_tiles(even)
    with planted():
        check_tiles(uneven)
    assert even.place_dependence or (even.probe_digest, even.sample_tile_cost) == ("p", 0.0)
    assert uneven.probe_digest != "p" and uneven.place_dependence in uneven.probe_detail
    assert uneven.sample_tile_cost >= 1.0


def test_the_check_leaves_units_as_they_were() -> None:
    context = build_case(Case("vit"))
    for unit in context.cut.units[:2]:
        unit.eval()
    context.cut.units[1].requires_grad_(False)
    before = [(unit.training, [p.requires_grad for p in unit.parameters()]) for unit in context.cut.units]
    addresses = [p.data_ptr() for unit in context.cut.units for p in unit.parameters()]
    find_place_dependence(context), find_address_dependence(context), measure_sample_tiles(context)
    assert [(unit.training, [p.requires_grad for p in unit.parameters()]) for unit in context.cut.units] == before
    assert [p.data_ptr() for unit in context.cut.units for p in unit.parameters()] == addresses


def test_a_kernel_that_looks_at_addresses_is_found() -> None:
    """The product depends on its operand's address, as MKL's products do without a mode of reproducibility."""
    context, real = build_case(Case("vit")), torch.nn.functional.linear

    def peeking(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return real(rows, weight, bias) * (1.0 if is_aligned(weight) else 1.001)

    torch.nn.functional.linear = peeking
    try:
        assert find_address_dependence(context) == "block 0 has other bits at other addresses"
    finally:
        torch.nn.functional.linear = real


@pytest.mark.parametrize(("kind", "boundary"), [("cpu", 64), ("cuda", 256)])
def test_a_device_needs_a_wider_boundary(kind: str, boundary: int) -> None:
    """Of a stand-in for a tensor: torch tells cuBLAS the alignment of operands up to 256 bytes, and it chooses kernels by it."""
    at = {place: SimpleNamespace(device=torch.device(kind), numel=lambda: 1, data_ptr=lambda place=place: place)
          for place in range(0, 1025, 32)}  # fmt: skip
    assert [place for place, tensor in at.items() if is_aligned(tensor)] == list(range(0, 1025, boundary))
    assert [place for place, tensor in at.items() if is_aligned(tensor, 64)] == list(range(0, 1025, 64))


def test_aligned_copies_only_what_is_not() -> None:
    memory = torch.arange(64.0)
    assert aligned(memory) is memory
    view = memory[3:40]
    assert not is_aligned(view) and is_aligned(aligned(view)) and torch.equal(aligned(view), view)


def test_weights_that_lie_in_a_mapped_file_are_moved_and_ties_stay() -> None:
    layer, other = torch.nn.Linear(5, 3, bias=False), torch.nn.Linear(5, 3, bias=False)
    layer.weight.data = torch.arange(16.0)[1:].view(3, 5)
    other.weight = layer.weight
    model = torch.nn.Sequential(layer, other)
    model.register_buffer("table", torch.arange(8.0)[1:])
    values = layer.weight.clone()
    align_weights(model)
    assert is_aligned(layer.weight) and is_aligned(model.table) and torch.equal(layer.weight, values)
    assert other.weight is layer.weight


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        ({}, "AUTO,STRICT"),
        ({"MKL_CBWR": ""}, "AUTO,STRICT"),
        ({"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, "AVX2,STRICT"),
        ({"MKL_CBWR": "COMPATIBLE"}, "COMPATIBLE"),
    ],
)
def test_the_mode_of_reproducibility(given: dict[str, str], settled: str) -> None:
    environ = dict(given)
    settle_kernels(environ)
    assert environ["MKL_CBWR"] == settled
    assert f"MKL_CBWR={settled}" in kernel_settings(environ)


def test_a_process_that_computes_has_it_before_torch_is_there() -> None:
    script = (
        "import importlib, os, sys\n"
        "seen = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': seen.append(os.environ.get('MKL_CBWR'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "importlib.import_module('frostline_trainer.process.worker'); import torch\n"
        "print(seen[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PATH": ""}, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() in ("AUTO,STRICT", "AVX2,STRICT")
