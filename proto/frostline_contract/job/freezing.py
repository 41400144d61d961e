"""When layers freeze: the job file's `freeze`, `decisions` and `elastic` sections (docs/design.md 6)."""

from typing import Literal

from frostline_contract.job.section import SECONDS_MAX, Section, fixed, live

PROBE_SAMPLES = 16


class PolicySection(Section):
    name: str = fixed(
        "gradient_argmin",
        doc="gradient_argmin (the paper's Eq. (1)), schedule, gradient_change, information_per_flop, plasticity, stairs, manual, "
        "replay, or one that an entry point of frostline.freeze_policies adds.",
    )
    alpha: float = fixed(
        1 / 3, gt=0.0, lt=1.0, doc="gradient_argmin, schedule: share of the remaining blocks frozen in one interval, at most."
    )
    normalise_by_parameters: bool = fixed(
        False, doc="gradient_argmin: divide a block's norm by the square root of its parameter count."
    )
    percentile: float = fixed(50.0, ge=0.0, le=100.0, doc="gradient_change: N of AutoFreeze's N-th percentile.")
    form: Literal["closed", "freezeout_linear", "freezeout_cubed", "linear"] = fixed("closed", doc="schedule: which curve.")
    freezeout_t0: float = fixed(0.8, gt=0.0, le=1.0, doc="schedule: t0 of FreezeOut.")
    settled_share: float = fixed(
        0.1,
        gt=0.0,
        le=1.0,
        later=True,
        doc="plasticity: a block has settled when outputs move at it by no more than this share of what they move at the block where "
        "they move most (1 - CKA).",
    )
    stairs: dict[float, float] = fixed(
        {}, later=True, doc="stairs: share of the blocks that is frozen from a share of the run on, e.g. {0.1: 0.5, 0.4: 0.67}."
    )
    points: dict[int, int] = fixed({}, doc="manual: freeze point by decision number, e.g. {3: 2, 6: 4}.")
    replay_of: str | None = fixed(None, doc="replay: run directory whose freeze history is followed.")


class RailsSection(Section):
    """Accuracy comes first: every rail is on by default, and each can be switched off by its name in `off`."""

    off: tuple[str, ...] = fixed(
        (),
        doc="Rails switched off: nan, warmup, cooldown, min_active, rearm, patience, unfreeze, absolute, cap_interval, "
        "cap_total, last_blocks, baseline, quarantine, least_move, guard (which takes baseline and quarantine with it).",
    )
    warmup_fraction: float = fixed(0.6, ge=0.0, lt=1.0, doc="warmup: nothing freezes before this share of the steps.")
    patience: int = fixed(2, ge=1, doc="patience: consecutive intervals that must ask for at least this freeze point.")
    unfreeze_patience: int = fixed(3, ge=1, doc="unfreeze: consecutive intervals that must ask for less than is frozen.")
    min_active_steps: int | None = fixed(
        None, ge=0, doc="min_active: steps a block must have learnt since the start or its last unfreezing; null: two intervals."
    )
    blocks_per_interval: int = fixed(
        1, ge=1, doc="cap_interval: blocks frozen by one decision, at most; least_blocks where that is more."
    )
    least_blocks: int = fixed(
        1,
        ge=1,
        later=True,
        doc="least_move: a freeze waits until it takes so many blocks, or all that may ever freeze: few deep moves, each of which "
        "fills the cache anew.",
    )
    total_fraction: float = fixed(0.5, ge=0.0, le=1.0, doc="cap_total: share of the blocks that may ever be frozen.")
    last_blocks: int = fixed(2, ge=1, doc="last_blocks: the last blocks, never frozen.")
    cooldown_intervals: int = fixed(1, ge=0, doc="cooldown: intervals without a change after one.")
    absolute_change: float = fixed(
        1.0,
        ge=0.0,
        doc="absolute: a block's norm must have fallen to this share of its peak (a rank test always nominates somebody).",
    )
    rearm_drop: float = fixed(
        0.5, gt=0.0, lt=1.0, doc="rearm: a learning rate this much below the last interval's starts patience anew."
    )
    guard_margin: float = fixed(
        0.02, ge=0.0, doc="guard: tolerated rise of the guard loss, as a share of its value before the freeze."
    )
    guard_confidence: float = fixed(0.95, gt=0.5, lt=1.0, doc="guard: confidence with which the rise must exceed the margin.")
    guard_intervals: int = fixed(2, ge=1, doc="guard: intervals after a freeze in which a breach rolls it back.")


class FreezeSection(Section):
    interval_steps: int | None = fixed(None, ge=2, doc="Steps an interval; null: one epoch.")
    initial_units: int = fixed(
        0,
        ge=0,
        later=True,
        doc="Units frozen from step 1 (the embedding is unit 0): no gradient, no moments, no exchange, cached from the first "
        "pass on. A command may unfreeze them. With elastic.freeze false nothing is frozen, these neither.",
    )
    policy: PolicySection = fixed(PolicySection(), doc="Who proposes a freeze point.")
    rails: RailsSection = fixed(RailsSection(), doc="What limits the proposal.")
    probe_samples: int | None = fixed(
        None,
        ge=0,
        later=True,
        doc="Samples of the guard split on which each unit's outputs are compared from interval to interval; null: 16 for the "
        "policy plasticity, else 0.",
    )

    @property
    def probes(self) -> int:
        """Samples on which outputs are compared at every interval's end; 0: they are not."""
        if self.probe_samples is not None:
            return self.probe_samples
        return PROBE_SAMPLES if self.policy.name == "plasticity" else 0


class DecisionsSection(Section):
    lag_steps: int = fixed(3, ge=3, doc="Steps from an interval's end to its decision's first step.")
    wait_seconds: float = live(
        30.0, ge=0.0, le=SECONDS_MAX, doc="A step whose decision is late waits at most this long; then the decision is void."
    )


class ElasticSection(Section):
    """Each part switches on and off independently, so that its share can be measured."""

    freeze: bool = fixed(True, doc="Layers freeze.")
    pipeline: bool = live(True, doc="The pipeline shrinks to the layers that still learn.")
    replicas: bool = live(True, doc="Freed workers become data-parallel width.")
    cache: bool = live(True, doc="Frozen layers' activations come from the cache, where that is measured to be faster.")
