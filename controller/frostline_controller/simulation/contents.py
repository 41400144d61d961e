"""The contents of the activation cache during a replayed run: empty at a new boundary, full after a pass over the data.

A pass at a boundary reads the values that earlier passes have written there. Where the boundary has moved deeper, a value of the
old boundary is read, advanced through the newly frozen units, and written again (docs/design.md 8); only those units compute.
"""

from dataclasses import replace
from math import ceil

from frostline_contract.job import Job
from frostline_contract.statistics import CacheProfile
from frostline_controller.planner.cache_costs import NO_HIT, cache_seconds
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.simulation.world import World, coverage, variants_of

WARM_PASSES = 5
"""Passes a variant after which a cache of several variants counts as full: each has been drawn with a chance above 99 %."""
NEVER = 2**62


class CacheContents:
    """The boundary activations in the cache.

    Attributes:
        train_samples: of the training split; 0: unknown.
        variants: values of each sample that the cache may hold.
        covered: share of all values for which the cache has memory.
        boundary: the freeze point whose activations are cached; 0: none.
        passed: samples trained since that is the boundary.
        older: the boundary before this one; 0: none.
        older_share: share of the older boundary's values that the cache holds.
    """

    def __init__(self, train_samples: int, variants: int, covered: float) -> None:
        self.train_samples, self.variants, self.covered = train_samples, variants, covered
        self.boundary, self.passed = 0, 0
        self.older, self.older_share = 0, 0.0

    @staticmethod
    def of(job: Job, world: World) -> "CacheContents":
        """Return the empty cache of a run."""
        covered = coverage(job, world.boundary_bytes, world.train_samples)
        return CacheContents(world.train_samples, variants_of(job), covered)

    def at(self, boundary: int) -> None:
        """Set the boundary from now on; 0: the cache is not used, and its contents are dropped."""
        if boundary == self.boundary:
            return
        deeper = 0 < self.boundary < boundary
        self.older, self.older_share = (self.boundary, self._share_after(self.passed)) if deeper else (0, 0.0)
        self.boundary, self.passed = boundary, 0

    def pass_samples(self, samples: int) -> None:
        """Note that so many samples have been read, and missing ones written."""
        self.passed += samples

    @property
    def hit_fraction(self) -> float:
        """The chance in this pass that a sample's value is cached. A pass reads each sample once, so no value of its own."""
        if not self.train_samples:
            return self.covered
        return self._share(self.passed // self.train_samples)

    def steps_alike(self, samples_of_step: int) -> int:
        """Return the number of steps to the next pass, up to which the hit fraction stays the same."""
        if not self.boundary or not self.train_samples or self.passed >= self._warm_passes * self.train_samples:
            return NEVER
        left = self.train_samples - self.passed % self.train_samples
        return max(1, ceil(left / samples_of_step))

    def priced(self, inputs: PlanInputs) -> PlanInputs:
        """Return the planner's inputs for a step in this pass: with the cache's profile, and the units that a miss computes."""
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
        """Return the share of values that so many whole passes have written: all for one variant, else the drawn variants."""
        if self.variants == 1:
            return self.covered if passes else 0.0
        return self.covered * (1 - (1 - 1 / self.variants) ** passes)

    def _share_after(self, samples: int) -> float:
        """Return the share of values written after so many samples; within a pass it is interpolated."""
        if not self.train_samples:
            return self.covered
        passes, rest = divmod(samples, self.train_samples)
        return self._share(passes) + (self._share(passes + 1) - self._share(passes)) * rest / self.train_samples
