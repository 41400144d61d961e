"""Checks that one worker's bits are the oracle's on this device, and that they repeat."""

import copy
import warnings
from dataclasses import replace

import torch

from frostline_contract.job import JobError
from frostline_trainer.prefix.own_tokens import own_tokens
from frostline_trainer.prefix.padding_check import find_padding_dependence
from frostline_trainer.replication.inventory import Holdings
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.digests import world_digest
from frostline_trainer.step.side_copies import await_copies
from frostline_trainer.step.unit_state import export_unit, unit_digest
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import new_context
from tests.engine_member import Run, run_member
from tests.exact_cases import Case, build_case, job_of
from tests.gpu_check import subjects
from tests.gpu_check.findings import Verdict
from tests.gpu_check.parting import parting
from tests.gpu_check.setting import Setting
from tests.hand_made_plans import Layout, lone_plan
from tests.integration.test_exactness import FAMILIES, FURTHER_FAMILIES

ORACLE_TYPES = ("float32", "float64", "bfloat16", "mixed_bfloat16")

LARGE_PRECISIONS = ("float32", "mixed_bfloat16")
REPEATS, STEPS = 5, 2


def determinism(setting: Setting) -> None:
    """Check every family in every precision against the oracle, repeated steps of larger models, and the probe."""
    families = FAMILIES[:2] if setting.quick else FAMILIES + FURTHER_FAMILIES
    precisions = [
        one for one in (("float32", "mixed_bfloat16") if setting.quick else ORACLE_TYPES) if accepted(one, setting.device)
    ]
    sizes = ("gpt2",) if setting.quick else subjects.FAMILIES
    small = [(family, precision) for family in families for precision in precisions]
    large = [(family, precision) for family in sizes for precision in precisions if precision in LARGE_PRECISIONS]
    setting.findings.expect(
        [_small(*one) for one in small] + [_large(*one) for one in large] + [PROBE, COPIES, PLACES, PADDING, SYNCHRONISATIONS]
    )
    for precision in ORACLE_TYPES:
        if not accepted(precision, setting.device):
            setting.findings.add(f"every family in {precision}", Verdict.UNSEEN, f"no job may say so on {setting.device}")
    for family, precision in small:
        ask_small(setting, family, precision)
    ask_probe(setting)
    ask_copies(setting)
    ask_places(setting)
    ask_padding(setting)
    count_synchronisations(setting)
    for family, precision in large:
        ask_large(setting, family, precision)


def accepted(precision: str, device: str) -> bool:
    """Whether a job may have this precision on the device: a CPU does not have them all."""
    try:
        job_of(Case("vit", precision, device=device))
    except JobError:
        return False
    return True


# ---- small models

PROBE = "the start-up probe gives the same digest twice"
COPIES = "what a checkpoint copies while the next steps run is the state of its own step"
PLACES = "whether a sample's bits depend on its place in a micro-batch (a block of the larger gpt2; 1: they do not)"
PADDING = "whether bits depend on what padding behind a text holds, forward and backward (1: they do not)"
SYNCHRONISATIONS = "operations of a step that make the host wait for the device"


def _small(family: str, precision: str) -> str:
    return f"{family} in {precision}: " + ("the oracle's bits" if precision in ORACLE_TYPES else "the same bits twice")


def _large(family: str, precision: str) -> str:
    return f"{family}, larger, in {precision}: {REPEATS} times the same bits"


def ask_small(setting: Setting, family: str, precision: str) -> None:
    """Check six steps with dropout, clipping and freezing; bfloat16 and float64 as in the exactness suite."""
    case = Case(family, precision, device=setting.device)
    if precision == "bfloat16":
        case = replace(case, clip_norm=None, dropout=0.0)
    runs = [run_alone(case) for _ in range(2)]
    found = [parting(case, runs[:1])] if precision in ORACLE_TYPES else []
    if bits_of(runs[0]) != bits_of(runs[1]):
        found.append("two runs differ")
    setting.findings.judge(_small(family, precision), not any(found), "; ".join(filter(None, found)))


def run_alone(case: Case) -> Run:
    """Return the report of one worker that trains a case."""
    plan = lone_plan(Layout(1, 1).placement(0)).model_dump(mode="json")
    return run_member(case, "w0", [(plan, case.steps)])


def bits_of(run: Run) -> tuple[object, ...]:
    """Return what must repeat: not the plan's generation, nor the peak of the memory, which the process has from earlier runs."""
    return run.losses, run.gradient_norms, run.unit_norms, run.units, run.digest, run.guard


def ask_probe(setting: Setting) -> None:
    pair = [new_context("digits", f"training.device={setting.device}") for _ in range(2)]
    setting.findings.judge(PROBE, pair[0].probe_digest == pair[1].probe_digest, pair[0].probe_detail)


# ---- sizes that people train


def ask_large(setting: Setting, family: str, precision: str) -> None:
    first = subjects.build(family, setting.device, precision)
    digests = {_trained(first) for _ in range(REPEATS)}
    words = f"{subjects.words(family, setting.device)}; {REPEATS} runs of {STEPS} steps, {len(digests)} digest(s)"
    setting.findings.judge(_large(family, precision), len(digests) == 1, words)


def _trained(first: RunContext) -> str:
    """Return the digest after some steps of one worker from the first weights, which stay unchanged."""
    context = replace(first, cut=copy.deepcopy(first.cut), moments={}, holdings=Holdings())
    stepper = Stepper(context)
    for _ in range(STEPS):
        stepper.step()
    return world_digest(stepper.generation)


def ask_copies(setting: Setting) -> None:
    """Check copies that are queued on the device and not waited for, with two updates right after them."""
    context = subjects.build("gpt2", setting.device, "float32")
    stepper = Stepper(context)
    stepper.step()
    states = {unit: export_unit(unit, module, context.moments) for unit, module in enumerate(context.cut.units)}
    then = {unit: unit_digest(state) for unit, state in states.items()}
    copies, copied = context.copies.of(states)
    for _ in range(STEPS):
        stepper.step()
    await_copies(copied)
    same = sum(unit_digest(copies[unit]) == then[unit] for unit in states)
    moved_on = sum(unit_digest(state) != then[unit] for unit, state in states.items())
    words = f"{same} of {len(states)} units as they were, {moved_on} have moved on"
    setting.findings.judge(COPIES, same == moved_on == len(states), words)


def ask_places(setting: Setting) -> None:
    """Check a row alone, first and last among others, through one block: a requirement of the cache on kernels."""
    context = subjects.build("gpt2", setting.device, "float32")
    unit, (tokens, width) = context.cut.units[1], context.hidden_shape
    rows = torch.randn(context.micro_batch_size, tokens, width, generator=torch.Generator().manual_seed(1)).to(context.device)
    with torch.no_grad():
        together = unit(rows, {})
        turned = unit(rows.roll(1, dims=0), {}).roll(-1, dims=0)
        alone = unit(rows[:1].contiguous(), {})
    moved, single = bool((together == turned).all()), bool((together[:1] == alone).all())
    figures = {"rows moved, equal": float(moved), "row alone, equal": float(single)}
    setting.findings.add(PLACES, Verdict.MEASURED, "the start-up check of a run finds it out by itself", figures)


def ask_padding(setting: Setting) -> None:
    """Check small models in each precision for the property by which the cache may leave padding out."""
    figures, found = {}, []
    for family in ("bert_classification", "gpt2_untied", "llama"):
        for precision in ORACLE_TYPES if not setting.quick else ORACLE_TYPES[:1]:
            if accepted(precision, setting.device):
                context = build_case(Case(family, precision, device=setting.device))
                own = own_tokens(context)
                assert own is not None, f"{family} has padding"
                dependence = find_padding_dependence(context, own)
                figures[f"{family} in {precision}"] = float(not dependence)
                found += [f"{family}: {dependence}"] if dependence else []
    detail = "; ".join(["the start-up check of a run finds it out by itself", *found])
    setting.findings.add(PADDING, Verdict.MEASURED, detail, figures)


def count_synchronisations(setting: Setting) -> None:
    """Count the synchronisations that torch itself reports in one step after a warm-up."""
    if not setting.on_gpu:
        setting.findings.add(SYNCHRONISATIONS, Verdict.UNSEEN, "a CPU has nothing to wait for")
        return
    context = subjects.build("gpt2", setting.device, "mixed_bfloat16")
    stepper = Stepper(context)
    stepper.step()
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        stepper.step()
    torch.cuda.set_sync_debug_mode("default")
    places: dict[str, int] = {}
    for one in said:
        where = f"{one.filename.rpartition('frostline_trainer/')[2]}:{one.lineno}"
        places[where] = places.get(where, 0) + 1
    top = sorted(places.items(), key=lambda item: -item[1])[:8]
    setting.findings.add(SYNCHRONISATIONS, Verdict.MEASURED, ", ".join(f"{where} {count} times" for where, count in top),
                      {"a step": float(len(said))})  # fmt: skip
