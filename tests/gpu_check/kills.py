"""A kill of a worker in the middle of a step, over each transport; the others go on in their processes, to the same digest."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from frostline_contract.plan import GLOO, NCCL, Backend
from tests.exact_cases import Case
from tests.gpu_check.digests import prepare
from tests.gpu_check.findings import Verdict
from tests.gpu_check.setting import Setting
from tests.hand_made_plans import Layout
from tests.integration.test_recovery_moves import Outcome, assert_undisturbed, kill, run_with_faults
from tests.simulated_kills import kill_over_simulated_nccl
from tests.warm_workers import WarmWorkers

PHASES = ("schedule", "exchange", "vote", "commit", "update")
WORKERS = 4
CASE = Case("gpt2_tied", freezing=(), steps=12)


def kills(setting: Setting) -> None:
    """Kill one of four workers (SIGKILL) in each phase, on (2, 2); then three go on as (3, 1)."""
    phases = ("exchange",) if setting.quick else PHASES
    setting.findings.expect([_line(setting, backend, phase) for backend in (GLOO, NCCL) for phase in phases])
    for backend in (GLOO, NCCL):
        if backend == NCCL and not setting.on_gpu:
            _simulated(setting, phases)
        else:
            _real(setting, backend, phases)


def _line(setting: Setting, backend: Backend, phase: str) -> str:
    over = backend if backend == GLOO or setting.on_gpu else "NCCL's rules, simulated"
    return f"a worker dies in {phase} over {over}: the digest of the run that nothing befell"


def _real(setting: Setting, backend: Backend, phases: Sequence[str]) -> None:
    pool = WarmWorkers()
    case = replace(CASE, device=setting.device)
    try:
        prepare(pool, WORKERS, setting.gpus)
        alone = run_with_faults(pool, _folder(setting), [Layout(1, 1)], case=case)
        for number, phase in enumerate(phases):
            if setting.on_gpu:
                prepare(pool, WORKERS, setting.gpus)  # the successor of a killed worker is not set up yet
            _judge(setting, backend, phase, case, alone, pool, number)
    finally:
        pool.close()


def _judge(setting: Setting, backend: Backend, phase: str, case: Case, alone: Outcome, pool: WarmWorkers, number: int) -> None:
    try:
        ended = run_with_faults(pool, _folder(setting), [Layout(2, 2), Layout(3, 1)], [kill(1 + number % 3, 5, phase)], case=case,
                                dying=range(WORKERS), backend=backend)  # fmt: skip
        assert_undisturbed(ended, alone)
        assert len(ended.survivors) == WORKERS - 1, f"{len(ended.survivors)} workers were left of {WORKERS}, one was killed"
    except (AssertionError, RuntimeError) as error:
        setting.findings.judge(_line(setting, backend, phase), False, str(error).strip()[-400:])
        return
    setting.findings.judge(_line(setting, backend, phase), True, ended.outcome.digest[:12])


def _simulated(setting: Setting, phases: Sequence[str]) -> None:
    for phase in phases:
        line = _line(setting, NCCL, phase)
        if phase not in ("schedule", "exchange", "vote"):
            setting.findings.add(line, Verdict.UNSEEN, "behind the vote no message travels over NCCL: gloo's line says as much")
            continue
        found = kill_over_simulated_nccl(Case("gpt2_tied", dropout=0.0), Layout(2, 2), 3, 1, phase)
        setting.findings.judge(line, not found, "; ".join(found[:3]))


def _folder(setting: Setting) -> Path:
    return Path(tempfile.mkdtemp(dir=setting.folder))
