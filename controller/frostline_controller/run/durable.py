"""The durable state: all that a new controller needs to go on. It is one annotation, changed by compare-and-swap only.

It holds generation n, a prepared n + 1, all decisions, the lineages and the run's identity (docs/protocols.md 5.3). Each patch
tests the annotation FENCE, "<incarnation>.<counter>". So of two controllers only the one that raised the incarnation last can
write.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from frostline_contract.annotations import FENCE, PLAN, REQUESTED_WORKERS, STATE
from frostline_contract.job.automatic import Settled
from frostline_contract.lineage import Cuts, LineageStart, lineage_above
from frostline_contract.mesh import with_degrees
from frostline_contract.plan import MICRO_BATCH, SAMPLE, Decision, GenerationId, Plan, PrefixTile
from frostline_contract.record import Frozen
from frostline_contract.run_status import ENDED, RunStatus
from frostline_controller.cluster.backend import ClusterBackend, ClusterState, Conflict
from frostline_controller.decisions.kept import pack_decisions, unpack_decisions
from frostline_controller.recovery.budget import RetryBudget
from frostline_controller.recovery.facts import WrongBits
from frostline_controller.run.pinned import PinnedShape

STATE_BYTES_MAX = 200 * 1024
"""Limit of the state. The API server takes 256 KiB of annotations in all (docs/design.md 12.5); the rest is for other ones."""
END_BYTES = 16 * 1024
"""Extra room for the state of a run that has ended, so that its end and the reason can always be written."""

OLDER_START = ("start_pp_degree", "start_dp_degree")
"""Fields that older versions wrote instead of `start_degrees`."""


class RunIdentity(Frozen):
    """The run's identity: the first worker registers it, and every other worker must match it (docs/protocols.md 1.9, 1.10).

    Attributes:
        place_dependence: why a sample's bits depend on its place in a tile, in words; empty: they do not.
        prefix_tile: how many samples the frozen prefix computes together, chosen with `prefix_tile_reason`.
        sample_tile_cost: the cost of computing samples one by one, as a multiple of whole micro-batches.
    """

    probe_digest: str
    probe_detail: str
    num_units: int
    steps_per_epoch: int
    train_samples: int
    dataset_digest: str
    unit_names: tuple[str, ...] = ()
    boundary_bytes_per_sample: int = 0
    cacheable: bool = False
    cache_refusal: str = ""
    tied: bool = False
    weights_digest: str = ""
    place_dependence: str = ""
    prefix_tile: PrefixTile = MICRO_BATCH
    prefix_tile_reason: str = ""
    sample_tile_cost: float = 1.0

    @property
    def uncacheable(self) -> str:
        """The reason why nothing may be cached in this run, with the remedy; empty where caching is possible."""
        if not self.cacheable:
            return self.cache_refusal or "the augmentation mode forbids it"
        if self.place_dependence and self.prefix_tile == MICRO_BATCH:
            return f"{self.place_dependence}, and frozen layers compute whole micro-batches (cache.prefix_tile)"
        return ""

    @property
    def prefix_cost(self) -> float:
        """The cost of computing the frozen prefix, relative to computing it in whole micro-batches."""
        return max(1.0, self.sample_tile_cost) if self.prefix_tile == SAMPLE else 1.0


class FailedDevice(Frozen):
    """A GPU (or MIG instance) that ended a worker of this run, with its place and the number of failures."""

    node: str
    uuid: str
    failures: int


class DurableState(Frozen):
    """The run's state, which the next controller finds after this one's death; written before a change is announced.

    Attributes:
        incarnation: number of this controller, one more than that of the controller before it.
        counter: highest plan number ever used.
        lineage: the lineage of the newest plan that was started or switched to.
        max_lineage: highest lineage ever planned, started or not.
        lineages: the starts of lineages, oldest first.
        current: the plan of the newest generation; None before the first.
        prepared: the plan that is prepared to follow the current one; None where there is none.
        decisions: all decisions, void and undone ones too.
        identity: data, units and probe digest, as the first worker gave them; None before.
        state: waiting, running, draining, suspended, completed, failed or cancelled.
        message: for people: what the run waits for, or how it ended.
        started_at: Unix seconds.
        forced_freeze_point: a freeze or unfreeze by command that the next decision carries out, as a unit's index; -1: none.
            It is there again where that decision is void, or a restore undoes it.
        pinned: the shape that a command or a scheduled reshape has set; None where the planner chooses.
        reshapes_done: how many of the job's scheduled reshapes have been taken up.
        replicas: pods that the controller last wrote to spec.replicas; -1: never.
        scaling_from: number of pods before that write, while the write is not known to be done; -1 otherwise.
        continued: generations that led to the current one, newest last: their members may still bring records of stable steps.
        requested_workers: a user's limit of workers, 0 to suspend; -1: none.
        start_degrees: the shape that the run began with, by axis name; empty before.
        paused: the drain under way, or the wait after it, is for workers that had to go: it ends by itself when enough are there.
        cancelled: a person has cancelled the run: the drain under way ends it as cancelled, not as suspended.
        retries: failures of the run's own making without progress since.
        cache_off: why the cache is used no more; empty: the cache may be used.
        failed_devices: GPUs that failed.
        memory_limit_bytes: a plan that was predicted to need more bytes a worker ran out of memory; 0: none has.
        removals: by id, workers that an answer has excluded and whose pods are not deleted yet, with the reason.
        job_digests: of the job that the run follows, by section; empty in a state that an older version has written.
        settled: what stands in place of the job's `auto`, and why; None: nothing was left to the run, or it is not settled yet.
        wrong_bits: the newest that a plan went back from, so that each controller can report them; None: none were found.
    """

    incarnation: int = 0
    counter: int = 0
    lineage: int = 0
    max_lineage: int = 0
    lineages: tuple[LineageStart, ...] = (LineageStart(lineage=0, starts_at_step=0),)
    current: Plan | None = None
    prepared: Plan | None = None
    decisions: tuple[Decision, ...] = ()
    identity: RunIdentity | None = None
    state: RunStatus = RunStatus.WAITING
    message: str = ""
    started_at: float = 0.0
    forced_freeze_point: int = -1
    pinned: PinnedShape | None = None
    reshapes_done: int = 0
    replicas: int = -1
    scaling_from: int = -1
    continued: tuple[GenerationId, ...] = ()
    requested_workers: int = -1
    start_degrees: dict[str, int] = Field(default_factory=dict)
    paused: bool = False
    cancelled: bool = False
    retries: RetryBudget = RetryBudget()
    cache_off: str = ""
    failed_devices: tuple[FailedDevice, ...] = ()
    memory_limit_bytes: int = 0
    removals: dict[str, str] = Field(default_factory=dict)
    job_digests: dict[str, str] = Field(default_factory=dict)
    settled: Settled | None = None
    wrong_bits: WrongBits | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_start_degrees(cls, values: Any) -> Any:
        """A state that was written before shapes had named degrees has `start_pp_degree` and `start_dp_degree`."""
        if not isinstance(values, Mapping) or not any(name in values for name in OLDER_START):
            return values
        older = with_degrees({name.removeprefix("start_"): values.get(name, 0) for name in OLDER_START})
        return {"start_degrees": older["degrees"]} | {name: value for name, value in values.items() if name not in OLDER_START}

    def pinned_under(self, plan: Plan) -> PinnedShape | None:
        """Return the pinned shape once `plan` runs; if the plan has that shape, its request is answered."""
        found = self.pinned
        return found.answered if found is not None and found.open_request and found.is_in(plan.placement) else found

    @property
    def next_lineage(self) -> int:
        """Return the number of a lineage that opens now: above all that were ever planned."""
        return lineage_above(self.max_lineage)

    @property
    def between(self) -> bool:
        """Whether a generation is over and the next one starts from a checkpoint when workers are there: a resume, or a pause."""
        return self.state == RunStatus.WAITING and self.current is not None

    @property
    def cuts(self) -> Cuts:
        """The steps that survive the lineages that have begun so far."""
        return Cuts(self.lineages)

    @property
    def fence(self) -> str:
        """ "<incarnation>.<counter>": a patch that finds another one in the API server is a superseded controller's."""
        return str(GenerationId(incarnation=self.incarnation, counter=self.counter))

    def starts_at(self, lineage: int) -> int:
        """Return the committed step that a lineage starts from; 0 for an unknown lineage."""
        return next((start.starts_at_step for start in self.lineages if start.lineage == lineage), 0)


def encode_state(state: DurableState) -> str:
    """Return the state as compressed JSON in base64. Plans are kept without their decisions, which the state holds once.

    Raises ValueError above STATE_BYTES_MAX; for a run that has ended, END_BYTES more are allowed.
    """
    raw = state.model_dump(mode="json", exclude_defaults=True)
    if "decisions" in raw:
        raw["decisions"] = pack_decisions(state.decisions)
    for name in ("current", "prepared"):
        if raw.get(name):
            raw[name].pop("decisions", None)
    text = base64.b64encode(zlib.compress(json.dumps(raw, separators=(",", ":")).encode(), 9)).decode()
    if len(text) > STATE_BYTES_MAX + (END_BYTES if state.state in ENDED else 0):
        raise ValueError(
            f"the durable state is {len(text)} bytes, {STATE_BYTES_MAX} are allowed "
            f"({len(state.decisions)} decisions, {len(state.current.placement.workers) if state.current else 0} workers); "
            "use fewer workers or longer freeze.interval_steps"
        )
    return text


def decode_state(text: str) -> DurableState:
    """Return the state of a text. Raises ValueError for a damaged text."""
    try:
        raw: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        raw["decisions"] = unpack_decisions(raw.get("decisions", ()))
        state = DurableState.model_validate(raw)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"the run's durable state (annotation {PLAN}) is damaged ({reason}); restore it from a copy") from None
    plans = {name: getattr(state, name) for name in ("current", "prepared") if raw.get(name)}
    return state.model_copy(update={name: plan.model_copy(update={"decisions": state.decisions}) for name, plan in plans.items()})


def read_state(cluster: ClusterState) -> DurableState:
    """Return the present state; an empty one where no controller has led yet. Raises ValueError for a damaged one."""
    text = cluster.annotations.get(PLAN)
    return decode_state(text) if text else DurableState()


class DurableStore:
    """Reads and writes the durable state of one incarnation. Blocking; Conflict means that another controller leads."""

    def __init__(self, backend: ClusterBackend) -> None:
        self._backend = backend
        self._asked = ""  # the fence of the last attempt to take over

    def take_over(self) -> tuple[DurableState, ClusterState]:
        """Raise the incarnation (before anything else), and return the state found under it, and the cluster.

        It may be called again after an error: an attempt whose answer was lost may have raised the incarnation. Raises Conflict.
        """
        cluster = self._backend.read()
        found = cluster.annotations.get(FENCE)
        state = read_state(cluster)
        incarnation = _incarnation_of(found) if found else 0
        raised = state.model_copy(update={"incarnation": incarnation + 1})
        before, self._asked = self._asked, raised.fence
        try:
            changes = {FENCE: raised.fence, PLAN: encode_state(raised), STATE: raised.state}
            self._backend.patch_annotations(changes, {FENCE: found})
        except Conflict:
            if not before or self._backend.read().annotations.get(FENCE) != before:
                raise
            return self.take_over()
        return raised, cluster

    def write(self, old: DurableState, new: DurableState, remove: Mapping[str, str] | None = None) -> None:
        """Replace `old` by `new`, in one patch with the annotations for people. Raises Conflict where another controller leads.

        The stored state may come from this controller's own write whose answer was lost: no other process has its incarnation. No
        process has received that state, so it is replaced.

        Args:
            remove: other annotations, by their text, to remove in the same patch; an annotation with another text stays.
        """
        shown = {STATE: new.state, REQUESTED_WORKERS: str(new.requested_workers) if new.requested_workers >= 0 else None}
        changes: dict[str, str | None] = {PLAN: encode_state(new), FENCE: new.fence}
        if new.state != old.state:
            changes[STATE] = shown[STATE]
        if new.requested_workers != old.requested_workers:
            changes[REQUESTED_WORKERS] = shown[REQUESTED_WORKERS]
        removed: dict[str, str | None] = dict.fromkeys(remove or {})
        try:
            self._backend.patch_annotations(changes | removed, {FENCE: old.fence, **(remove or {})})
        except Conflict:
            if remove:
                return self.write(old, new)
            found = self._backend.read().annotations.get(FENCE, "")
            if found == old.fence or found.partition(".")[0] != str(new.incarnation):
                raise
            self._backend.patch_annotations(changes | shown, {FENCE: found})


def _incarnation_of(fence: str) -> int:
    incarnation, _, counter = fence.partition(".")
    if not (incarnation.isdecimal() and counter.isdecimal()):
        raise ValueError(f"annotation {FENCE} is {fence[:40]!r}, which is no generation such as 3.14; restore it from a copy")
    return int(incarnation)


def next_generation(state: DurableState) -> GenerationId:
    """Return a generation number that was never used."""
    return GenerationId(incarnation=state.incarnation, counter=state.counter + 1)
