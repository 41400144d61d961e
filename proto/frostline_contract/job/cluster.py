"""Where the run lives: the job file's `placement`, `cluster`, `cache`, `controller` and `faults` sections."""

from typing import Literal

from pydantic import field_validator, model_validator

from frostline_contract.job.section import SECONDS_MAX, Section, fixed, live
from frostline_contract.mesh import Mesh, check_degrees
from frostline_contract.phases import FAULT_PHASES, ControllerPhase, Phase
from frostline_contract.shard_address import parse_shard_address


class PlacementSection(Section):
    """What the planner may choose. Changes no bit of any result."""

    workers: int = live(4, ge=1, le=65536, doc="Workers wanted (pods times GPUs a pod).")
    min_workers: int = live(1, ge=1, doc="Below this many the run waits, saying so.")
    spare_workers: int = live(
        0, ge=0, le=65536, doc="Workers kept started beside those, outside the shape: one takes a lost worker's place at once."
    )
    workers_per_pod: int = fixed(1, ge=1, le=1024, doc="Workers an agent starts: one a GPU.")
    pp_degree: int | None = live(None, ge=1, doc="Pins the pipeline's depth for the whole run; null: the planner's choice.")
    dp_degree: int | None = live(None, ge=1, doc="Pins the number of replicas; null: the planner's choice.")
    tp_degree: int | None = live(
        1,
        ge=1,
        doc="Workers that share each stage tile by tile: a power of two, at most training.tensor_tiles.inner. Each computes its tiles "
        "of every block that learns and holds their state, with shard: step or use its replica's ranges of it. Halved while workers do "
        "not suffice. null: the planner's choice, at most the workers of a machine; those left over on several form groups too.",
    )
    tp_depth: int | None = live(
        1,
        ge=1,
        doc="Workers over which the hidden width of each of these tiles is cut as well: a power of two, at most "
        "training.tensor_tiles.hidden. A group then has tp_degree x tp_depth workers. Halved while workers do not suffice, before "
        "tp_degree is. null: the planner's choice, over several machines too.",
    )
    initial_pp_degree: int | None = fixed(
        None, ge=1, doc="The pipeline's depth at the start (the paper's K0); later the planner's choice."
    )
    backend: Literal["auto", "gloo", "nccl"] = live(
        "auto",
        doc="What carries activations and gradients. auto: nccl where each participant of a plan has a GPU of its own, else gloo; nccl: also where GPUs are shared, which NCCL then refuses or allows.",
    )
    schedule: str = live(
        "auto",
        doc="gpipe, 1f1b, interleaved_1f1b; without bubbles zb_h1, zb_h2 and, of two stages a rank in a V, zb_v, v_half, v_min; an entry point's of frostline.schedules; or auto: the best of the built-in ones, of those without bubbles where workers have measured what split backwards cost.",
    )
    virtual_stages: int | None = live(
        1, ge=1, le=8, doc="Most stages a rank, with interleaved_1f1b. null: the planner's choice of one or two."
    )
    slices: int | None = live(
        None,
        ge=1,
        doc="Parts of a micro-batch that travel along a pipeline one behind the other, at most training.token_cells of them; null: the planner's choice.",
    )
    shard: Literal["none", "step", "use", "auto"] = live(
        "none",
        doc="How replicas share the state of a stage out. none: each owns all of it. step: each owns its ranges (training.state_ranges): optimizer moments, sum of gradients and update are of one replica (with tp_degree each member has those of its tiles), and weights are gathered before each step (what others call ZeRO-1 and ZeRO-2). use: weights are of one replica too, and each unit that learns is gathered before its forward and its backward of each micro-batch and freed afterwards (ZeRO-3, FSDP); not with compile or token_cells. auto: the planner's choice, step where memory needs it or where a shape that fits only so saves more than hysteresis, and use where nothing else fits. No bit of any result changes; exact numerics only.",
    )
    tensor_rows: Literal["whole", "split", "auto"] = live(
        "whole",
        doc="How the workers of a tp_degree group have samples between the sums of tiled layers. whole: each has all and computes the same. split: each has its part (training.tensor_tiles.rows), so that activations take less memory, for as many bytes sent (sequence parallelism). auto: split in every group that has no more workers than there are such parts. No bit of any result changes.",
    )
    planner: Literal["optimal", "paper_greedy"] = live(
        "optimal", doc="paper_greedy: the paper's partitioner and compression rule."
    )
    objective: Literal["throughput", "cost"] = live(
        "throughput", doc="throughput: freed workers become replicas. cost: they go back."
    )
    worker_cpus: float | None = fixed(
        None,
        ge=0.1,
        le=1024.0,
        doc="Processors that a worker gets, no more and no fewer: on this machine by a control group's quota, so that workers are devices of one speed; on a cluster as the container's request and limit. null: what the machine has.",
    )
    worker_memory_bytes: int | None = live(
        None,
        ge=1,
        doc="Memory a worker may use: no plan is made that is predicted to need more, and what workers measure is held against it (weights, moments, gradients and activations; on a CPU not the process around them). null: what a GPU has; on a CPU no limit.",
    )
    hysteresis: float = live(0.05, ge=0.0, doc="A reshape must save this share of the remaining time beyond its cost.")
    reshape_every_freeze: bool = live(False, doc="Reshape at every freeze, worth it or not (for demonstrations and tests).")
    buddies: bool = live(
        True,
        doc="Keep a copy of each unit whose owners share one failure domain, in another worker: on its device where there is room, else in host memory.",
    )
    pods_per_node: int = fixed(1, ge=1, doc="Local cluster: pods that share a node, its failure domain.")
    failure_domain_label: str = fixed(
        "kubernetes.io/hostname",
        doc="Node label whose values are failure domains. Each node is one: the chart refuses any other label, and a local run reads none.",
    )

    @property
    def pods(self) -> int:
        """Pods that the run wants: for its workers and its spare ones."""
        return -(-(self.workers + self.spare_workers) // self.workers_per_pod)

    @model_validator(mode="after")
    def _consistent(self) -> "PlacementSection":
        if self.min_workers > self.workers:
            raise ValueError(f"min_workers {self.min_workers} exceeds workers {self.workers}; lower min_workers or raise workers")
        tensor = {"tp_degree": self.tp_degree or 1, "tp_depth": self.tp_depth or 1}
        pinned = Mesh.of(
            {
                "dp": self.dp_degree or 1,
                "pp": self.pp_degree or 1,
                "tp_columns": tensor["tp_degree"],
                "tp_depth": tensor["tp_depth"],
            }
        ).size
        if pinned > self.workers:
            fields = " x ".join(["pp_degree x dp_degree", *(name for name, degree in tensor.items() if degree > 1)])
            raise ValueError(f"{fields} = {pinned} exceeds workers {self.workers}; raise workers or lower a degree")
        return self


class ClusterSection(Section):
    """What the machines are like that workers run on."""

    price_per_worker_hour: float | None = live(
        None,
        ge=0.0,
        le=1e9,
        doc="What a worker costs an hour, in any currency: the run's ledger then tells money beside worker-seconds, all of them at the newest price. null: no money is told.",
    )


class CacheSection(Section):
    use: Literal["auto", "always", "never"] = live("auto", doc="auto: where the measured fetch beats the measured recompute.")
    shards: int = live(1, ge=1, le=256, doc="Redis servers, one single-threaded process each.")
    addresses: tuple[str, ...] = live((), doc="host:port of external Redis servers; empty: started with the run.")
    trusted: bool = live(
        False, doc="With addresses: use them though no secret signs the values. Whoever writes there then decides results."
    )
    memory_bytes: int = live(1 << 30, ge=1 << 20, doc="Memory of all shards together; admission follows from it.")
    codec: Literal["none", "bfloat16", "int8"] = fixed(
        "none", doc="none: the compute type's bytes. A lossy codec is part of the function."
    )
    prefix_tile: Literal["auto", "micro_batch", "sample"] = fixed(
        "auto",
        doc="Samples that frozen layers compute together. micro_batch: as they are trained, and no cache on a machine whose kernels give a sample other bits at another place; sample: one, right on every machine; auto: micro_batch where the start-up check allows it, else whichever of the two costs less.",
    )
    shadow_audit_fraction: float = live(
        0.01, ge=0.0, le=1.0, doc="Share of the cached micro-batches that are computed again and compared."
    )
    prefetch_steps: int = live(2, ge=0, le=64, doc="Steps whose samples are fetched ahead; 0: scores do not read ahead either.")

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            parse_shard_address(address)
        return addresses


class ControllerSection(Section):
    heartbeat_seconds: float = live(0.5, ge=0.01, le=SECONDS_MAX, doc="Interval of a worker's liveness and progress messages.")
    dead_after_seconds: float = live(10.0, gt=0.0, le=SECONDS_MAX, doc="Silence after which a worker counts as gone.")
    hang_floor_seconds: float = live(
        60.0, gt=0.0, le=SECONDS_MAX, doc="Least deadline of a phase; the deadline is max(floor, 5 x rolling p99)."
    )
    reshape_deadline_seconds: float = live(
        120.0, gt=0.0, le=SECONDS_MAX, doc="A prepared reshape that no vote has switched by then is abandoned."
    )
    start_timeout_seconds: float = live(
        120.0, gt=0.0, le=SECONDS_MAX, doc="How long the first plan waits for all workers before it takes those there are."
    )
    join_settle_seconds: float = live(
        0.5,
        ge=0.0,
        le=SECONDS_MAX,
        doc="Workers that join within this time of each other are taken in by one reshape; the last that is wanted, at once.",
    )
    join_pause_seconds: float = live(
        5.0, ge=0.0, le=SECONDS_MAX, doc="Least time between two reshapes that only take in joiners."
    )
    fruitless_recoveries_max: int = live(
        5, ge=1, doc="Recoveries in a row without one committed step, after which the run stops with the first error."
    )
    log_level: Literal["debug", "info", "warning", "error"] = live("info", doc="Least level of the structured logs.")

    @model_validator(mode="after")
    def _check_heartbeats_fit(self) -> "ControllerSection":
        if self.dead_after_seconds <= self.heartbeat_seconds:
            raise ValueError(
                f"dead_after_seconds {self.dead_after_seconds:g} is not above heartbeat_seconds {self.heartbeat_seconds:g}: every "
                "worker would count as gone; raise dead_after_seconds"
            )
        return self


class ScheduledReshape(Section):
    """A reshape by command at a step: how tests and demonstrations move a run through shapes."""

    step: int = fixed(ge=1, doc="First step whose vote may switch.")
    pp_degree: int = fixed(ge=1, doc="Pipeline depth.")
    dp_degree: int = fixed(ge=1, doc="Replicas.")
    tp_degree: int = fixed(1, ge=1, doc="Workers that share each stage tile by tile, as placement.tp_degree says of a run.")
    tp_depth: int = fixed(1, ge=1, doc="Workers over which the hidden width is cut, as placement.tp_depth says of a run.")
    schedule: str = fixed("1f1b", doc="Schedule.")
    virtual_stages: int = fixed(1, ge=1, doc="Stages a rank.")
    slices: int | None = fixed(None, ge=1, doc="As placement.slices; null: as there.")
    shard: Literal["none", "step", "use"] | None = fixed(None, doc="As placement.shard; null: as there.")
    tensor_rows: Literal["whole", "split"] | None = fixed(None, doc="As placement.tensor_rows; null: as there.")

    @property
    def degrees(self) -> dict[str, int]:
        """The shape, its degrees by axis name."""
        return check_degrees(
            {"dp": self.dp_degree, "pp": self.pp_degree, "tp_columns": self.tp_degree, "tp_depth": self.tp_depth}
        )


FAULTS_OF_A_WORKER = ("kill_worker", "raise", "tear", "late_commit", "stop", "deadlock", "slow", "cut", "kill_in_checkpoint",
                      "flip", "device_error", "device_hang", "oom")  # fmt: skip
"""Carried out by the worker itself, at (step, phase)."""
FAULTS_OF_A_SERVICE = ("kill_redis", "kill_cache_server", "kill_controller")
"""Of no worker at all. The kinds in neither tuple are carried out through the cluster when the controller hears of the step."""
PLACED_FAULTS = ("kill_worker", "raise", "stop", "deadlock", "slow", "cut", "device_error", "oom", "kill_controller")
"""Those whose `phase` is the user's choice; the others have a place of their own."""
FLIPS_OF_A_STEP = ("cached_value", "activation", "gradient")
"""What of a step's computation may have a wrong bit; it is made so before the step computes it."""
DEFAULT_PHASE = Phase.SCHEDULE.value


def _one_of(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


class Fault(Section):
    """A planned fault: what happens to whom, when. It happens once, also where the step is computed again."""

    kind: Literal[
        "kill_worker", "raise", "tear", "late_commit", "stop", "deadlock", "slow", "cut", "kill_in_checkpoint", "flip",
        "device_error", "device_hang", "oom",
        "kill_pod", "kill_node", "cut_node", "leave", "kill_redis", "kill_cache_server", "kill_controller",
    ] = fixed(
        doc="kill_worker: SIGKILL. raise: an error of the step. tear: an error inside the update. late_commit: an error after "
        "this worker's part of the vote, before it has seen the result. stop: SIGSTOP. deadlock: blocks with heartbeats going on. "
        "slow: every step takes `seconds` longer, for 20 steps. cut: no control message passes for `seconds`. "
        "kill_in_checkpoint: SIGKILL in the middle of writing one. flip: a bit changes silently, see `what`. "
        "device_error: the worker's device fails, and its process ends. device_hang: its device does nothing more. oom: its device "
        "has too little memory for the plan. kill_pod, kill_node: the agent too, all pods of a node. "
        "cut_node: its pods are replaced while their processes live on, cut off from the controller for `seconds`. "
        "leave: a pod is deleted with grace. kill_redis, kill_cache_server, kill_controller: SIGKILL, and they come back."
    )  # fmt: skip
    step: int = fixed(ge=1, doc="The first step at which it may happen.")
    worker: int = fixed(0, ge=0, doc="Pod ordinal; of kill_node and cut_node: a pod of the node. Means nothing for services.")
    phase: str = fixed(
        DEFAULT_PHASE,
        doc=f"Where in the step. For kill_worker, raise, stop, deadlock, slow, cut, device_error and oom: {_one_of(FAULT_PHASES)}. For "
        f"kill_controller: {_one_of(tuple(ControllerPhase))}. The other kinds have a place of their own.",
    )
    seconds: float = fixed(5.0, gt=0.0, le=SECONDS_MAX, doc="How long, for slow, cut and cut_node.")
    what: Literal["weight", "moment", "cached_value", "activation", "gradient"] = fixed(
        "weight",
        doc="For flip: one bit of a weight or of an optimizer moment, after the step's update; one bit of every boundary "
        "activation that the worker stores in the cache in that step, before it is signed or hashed; or one bit of each of "
        "its stages' output, or of the gradient of its weights, in every micro-batch of that step.",
    )
    lasting: bool = fixed(False, doc="For a flip of activation or gradient: in every later step too, as a broken core does.")

    @model_validator(mode="after")
    def _lasts_where_it_can(self) -> "Fault":
        if self.lasting and (self.kind != "flip" or self.what not in ("activation", "gradient")):
            raise ValueError(f"lasting is for a flip of activation or gradient, not for {self.kind} of {self.what}; leave it out")
        return self

    @model_validator(mode="after")
    def _phase_exists(self) -> "Fault":
        if self.kind not in PLACED_FAULTS:
            if self.phase != DEFAULT_PHASE:
                raise ValueError(f"phase is {self.phase!r} for {self.kind}, which has a place of its own; leave phase out")
            return self
        phases = (*ControllerPhase, DEFAULT_PHASE) if self.kind == "kill_controller" else FAULT_PHASES
        if self.phase not in phases:
            raise ValueError(f"phase is {self.phase!r} for {self.kind}; it must be one of {', '.join(phases)}")
        return self
