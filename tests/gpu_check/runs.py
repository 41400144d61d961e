"""Whole runs of `frostline run` on this machine's devices: freeze, reshape, cache, kill; one digest, which `verify` confirms."""

from typing import Any

from tests.e2e.runs import Ended, Workshop, warm_preload
from tests.gpu_check.findings import Verdict
from tests.gpu_check.setting import Setting

WORKERS = 4
ALONE = "one worker alone ends"
FROZEN = "four workers: freezes, reshapes and the cache end with its digest"
KILLED = "four workers, of whom two are killed, end with its digest"
VERIFIED = "`frostline verify` computes chosen steps of that run again and finds no other bit"
OVER_NCCL = "the same over NCCL"
SHARING = (2, 30)
"""The version of NCCL from which an environment variable, the same for all workers, lets ranks share a GPU."""


def runs(setting: Setting) -> None:
    """The tiny digits run in several worlds."""
    lines = [ALONE, FROZEN] if setting.quick else [ALONE, FROZEN, KILLED, VERIFIED, OVER_NCCL]
    setting.findings.expect(lines)
    with warm_preload() as preload:
        workshop = Workshop(preload)
        try:
            _ask(setting, workshop)
        finally:
            workshop.close()


def _ask(setting: Setting, workshop: Workshop) -> None:
    on_device = {"training": {"device": setting.device}}
    alone = workshop.run(setting.folder / "alone", {**on_device, "cache": {"use": "never"}})
    setting.findings.judge(ALONE, alone.code == 0, alone.digest[:12] if alone.code == 0 else alone.story()[-400:])
    if alone.code:
        return
    many = {**on_device, "placement": {"workers": WORKERS}}
    frozen = workshop.run(setting.folder / "frozen", many)
    _judge(setting, FROZEN, frozen, alone)
    if setting.quick:
        return
    kills = [{"kind": "kill_worker", "step": step, "worker": worker} for step, worker in ((20, 1), (40, 2))]
    _judge(setting, KILLED, workshop.run(setting.folder / "killed", {**many, "faults": kills}), alone)
    verified = workshop.command("verify", str(frozen.folder))
    setting.findings.judge(VERIFIED, verified.returncode == 0, (verified.stdout + verified.stderr).strip().splitlines()[-1][:200])
    _ask_over_nccl(setting, workshop, many, kills, alone)


def _ask_over_nccl(setting: Setting, workshop: Workshop, many: dict[str, Any], kills: Any, alone: Ended) -> None:
    if not setting.on_gpu:
        setting.findings.add(OVER_NCCL, Verdict.UNSEEN, "there is no GPU")
        return
    if setting.gpus < WORKERS and setting.nccl < SHARING:
        version = ".".join(map(str, setting.nccl))
        why = f"NCCL {version} refuses workers that share {setting.gpus} GPU(s); digests and kills ask with a made-up host each"
        setting.findings.add(OVER_NCCL, Verdict.UNSEEN, why)
        return
    changes = {**many, "placement": {**many["placement"], "backend": "nccl"}, "faults": kills}
    with warm_preload(NCCL_MULTI_RANK_GPU_ENABLE="1") as preload:
        other = Workshop(preload)
        other.env["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        try:
            _judge(setting, OVER_NCCL, other.run(setting.folder / "nccl", changes), alone)
        finally:
            other.close()


def _judge(setting: Setting, line: str, ended: Ended, alone: Ended) -> None:
    if ended.code:
        setting.findings.judge(line, False, ended.story()[-600:])
        return
    found = [] if ended.digest == alone.digest else [f"digest {ended.digest[:12]}, alone {alone.digest[:12]}"]
    found += [] if ended.numerics == alone.numerics else ["losses or norms of a step differ"]
    hits = sum(record["cache_hits"] for record in ended.records)
    backends = sorted({plan["backend"] for plan in ended.plans})
    seen = f"shapes (pp, dp) {ended.shapes}, {hits} cache hits, over {', '.join(backends)}"
    setting.findings.judge(line, not found and len(ended.shapes) > 1 and hits > 0, "; ".join([*found, seen]))
