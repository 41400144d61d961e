"""What the activation cache holds as a replayed run goes on: nothing at a new boundary, everything after a pass over the data.

A pass at a boundary reads what earlier passes have written there. Where the boundary has moved deeper, a value of the old one
is read, advanced through the newly frozen units, and written again (docs/design.md 8): only those units are computed.
"""

from dataclasses import replace
from math import ceil

from frostline_contract.job import Job
from frostline_contract.statistics import CacheProfile
from frostline_controller.planner.cost import cache_seconds
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.simulation.world import World, coverage, variants_of

WARM_PASSES = 5
"""Passes a variant after which a cache of several variants counts as full: each has been drawn with a chance above 99 %."""
NEVER = 2**62
NO_HIT = 1e-12
"""The planner takes a hit fraction of 0 for one that nobody has measured."""


class CacheContents:
    """The boundary activations that the cache has.

    boundary: the freeze point that is cached, 0: none. passed: samples since then. older: the boundary before it.
    """

    def __init__(self, train_samples: int, variants: int, covered: float) -> None:
        self.train_samples, self.variants, self.covered = train_samples, variants, covered
        self.boundary, self.passed = 0, 0
        self.older, self.older_share = 0, 0.0

    @staticmethod
    def of(job: Job, world: World) -> "CacheContents":
        """An empty cache of a run."""
        covered = coverage(job, world.boundary_bytes, world.train_samples)
        return CacheContents(world.train_samples, variants_of(job), covered)

    def at(self, boundary: int) -> None:
        """The freeze point from now on; 0: the cache is not used, and what it holds is given up."""
        if boundary == self.boundary:
            return
        deeper = 0 < self.boundary < boundary
        self.older, self.older_share = (self.boundary, self._share_after(self.passed)) if deeper else (0, 0.0)
        self.boundary, self.passed = boundary, 0

    def pass_samples(self, samples: int) -> None:
        """So many samples have been read, and those that were missing written."""
        self.passed += samples

    @property
    def hit_fraction(self) -> float:
        """The chance that a sample's value is there, in this pass. A pass meets each sample once, so none of its own writes."""
        if not self.train_samples:
            return self.covered
        return self._share(self.passed // self.train_samples)

    def steps_alike(self, samples_of_step: int) -> int:
        """Steps until the next pass, after which more is there."""
        if not self.boundary or not self.train_samples or self.passed >= self._warm_passes * self.train_samples:
            return NEVER
        left = self.train_samples - self.passed % self.train_samples
        return max(1, ceil(left / samples_of_step))

    def priced(self, inputs: PlanInputs) -> PlanInputs:
        """The planner's inputs for a step in this pass: its cache profile, and what a miss still has to compute."""
        fetch, fill, _ = cache_seconds(inputs)
        hit, older = self.hit_fraction, self.older_share
        units = tuple(
            unit.model_copy(update={"forward_seconds": unit.forward_seconds * (1 - older)}) if number < self.older else unit
            for number, unit in enumerate(inputs.units)
        )
        profile = CacheProfile(
            fetch_seconds_per_sample=fetch, fill_seconds_per_sample=fill + older * fetch, hit_fraction=max(hit, NO_HIT)
        )
        return replace(inputs, units=units, cache=profile)

    @property
    def _warm_passes(self) -> int:
        return 1 if self.variants == 1 else WARM_PASSES * self.variants

    def _share(self, passes: int) -> float:
        """The share of values that so many whole passes have written: all of one variant, or those that were drawn."""
        if self.variants == 1:
            return self.covered if passes else 0.0
        return self.covered * (1 - (1 - 1 / self.variants) ** passes)

    def _share_after(self, samples: int) -> float:
        """As `_share`, in the middle of a pass."""
        if not self.train_samples:
            return self.covered
        passes, rest = divmod(samples, self.train_samples)
        return self._share(passes) + (self._share(passes + 1) - self._share(passes)) * rest / self.train_samples
