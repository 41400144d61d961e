"""Acts on a run from outside while it trains: commands, stops, bad writes, and deaths that no job file can plan."""

from dataclasses import dataclass

COMMANDS = ("freeze", "unfreeze", "resize", "checkpoint", "reshape")
"""Requests of people: by annotation, a reshape by `frostline reshape`. A reshape may be refused, and then changes nothing."""
SCALE = "scale"
"""`kubectl scale`: a person writes another number of pods into the StatefulSet, and the controller reads it as a request."""
SIZES = ("resize", SCALE)
"""Requests for another number of workers."""
STOPS = ("drain", "kill_all", "kill_write")
"""Acts that end the run, which is then resumed: a signal to `frostline`, kill -9 of it, kill -9 at a durable write."""
HOLDS = ("hold_all", "hold_controller", "hold_redis", "hold_cache_server", "hold_agent", "hold_preload")
"""SIGSTOP, and SIGCONT after `seconds`: of the whole machine, or of one process."""
WRITES = ("fail_write", "lie_write", "stall_write")
DEATHS = ("kill_agent", "kill_preload", "kill_shard")
"""kill -9 of a process that no planned fault hits alone. A shard of the cache comes back empty, and costs no worker anything."""
OWN_PRELOAD = ("kill_preload", "hold_preload")
"""Acts on a preload process that must belong to this run alone."""
SECOND_OWNER = "second_owner"
"""`frostline resume` of the running run: it is refused, and the run goes on as if nothing had happened."""
OTHER_DATA = "other_data"
"""For `seconds`, processes that start read another corpus, as from a stale volume."""
OTHER_WEIGHTS = "other_weights"
"""For `seconds`, processes that start load another model of the same architecture."""
CHANGES_NUMERICS = frozenset(("freeze", "unfreeze"))
"""Acts after which the run's results are compared with a replay of its decisions."""

FILES: dict[str, tuple[str, ...]] = {
    "sync": ("metrics.jsonl", "events.jsonl", "plans.jsonl", "statistics.jsonl", "statefulset.json", "safetensors", "manifest"),
    "name": ("statefulset.json", "safetensors", "sha256", "manifest.json", "epochs/", "result.json"),
}  # fmt: skip
"""Durable writes of a training run, by the place at which a fault can hit them."""

# ledger.json: nothing waits for it, it is whole or the one before, and it is written again later.
# profile.json: the round that writes it is repeated until it is written; no plan of the run reads it.
# traces.jsonl: a trace is acknowledged when it is on disk; until then its worker keeps it and sends it again.
# model: one failed write fails no run (protocols.md, 8.7); the folder gets its name last, when all of it is on disk.
BESIDE_FILES: dict[str, tuple[str, ...]] = {
    "sync": ("ledger.json", "profile.json", "traces.jsonl", ".model.partial"),
    "name": ("ledger.json", "profile.json", "run/model"),
}
"""The durable writes that tell about a run and are not its state."""


@dataclass(frozen=True)
class Act:
    """One act.

    Attributes:
        kind: one of the above.
        step: the act is carried out when this step is recorded.
        worker: pod ordinal.
        seconds: for holds and stalls.
        value: freeze point, workers of a resize, or pods of a scale request.
        shape: (pp, dp) of a reshape.
        file, at, times: the writes to hit, see plug/sitecustomize.py.
    """

    kind: str
    step: int
    worker: int = 0
    seconds: float = 0.0
    value: int = 0
    shape: tuple[int, int] = (0, 0)
    file: str = ""
    at: str = ""
    times: int = 1

    @property
    def phase(self) -> str:
        """The place of the act, for the table."""
        return self.at or "outside"

    def text(self) -> str:
        who = f" w{self.worker}" if self.kind in ("kill_agent", "hold_agent", "kill_shard", "hold_redis") else ""
        value = f" {self.value}" if self.kind in ("freeze", *SIZES) else ""
        value = f" {self.shape[0]}x{self.shape[1]}" if self.kind == "reshape" else value
        where = f" {self.at} {self.file}{f' x{self.times}' if self.times > 1 else ''}" if self.file else ""
        seconds = f" {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind}{who}{value}@{self.step}{where}{seconds}"
