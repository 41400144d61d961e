"""The cache beside a device: its own thread waits for the values that leave for it; another one computes the digest."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from frostline_contract.cache_identity import CacheIdentity
from frostline_contract.job.cluster import CacheSection
from frostline_contract.plan import Decision
from frostline_contract.run_directory import RunDirectory
from frostline_trainer.cache import writer as writer_module
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.cache.control import Boundary
from frostline_trainer.cache.counts import CacheSeconds
from frostline_trainer.cache.outcomes import Outcome
from frostline_trainer.generations.groups import lone_groups
from frostline_trainer.prefix import cache_use
from frostline_trainer.prefix.cache_use import CacheUse
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState
from tests.counting_device import BLOCKING, COPY, DEVICE, READ, CountingDevice
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, lone_plan
from tests.simulated_device import SimulatedDevice, device_error
from tests.unit.trainer.test_checkpoints import wait_until
from tests.unit.trainer.test_engine_loop import Bench, decision

SHAPE, NAME = (4, 8), CacheIdentity("revision", "data", "train", 2)


class Stored:
    """A stand-in for the write to Redis. payloads: those of each call."""

    def __init__(self) -> None:
        self.payloads: list[torch.Tensor] = []

    def __call__(self, lane: object, layout: object, identity: object, samples: Sequence[int], variants: object,
                 payloads: torch.Tensor) -> tuple[list[Outcome], float]:  # fmt: skip
        self.payloads.append(payloads)
        return [Outcome.DONE] * len(samples), 0.0


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    made = Stored()
    monkeypatch.setattr(writer_module, "store_values", made)
    return made


def cache_of(tmp_path: Path, codec: str, device: SimulatedDevice) -> BoundaryCache:
    """Return a cache without a server, with everything admitted."""
    section = CacheSection(codec=codec)
    cache = BoundaryCache("", "token", "worker", section, SHAPE, torch.float32, tmp_path, device_clock=lambda: device)
    cache._control.boundary = Boundary(NAME, None, 100, 1.0)
    return cache


@pytest.mark.parametrize("codec", ["none", "bfloat16", "int8"])
@pytest.mark.parametrize("chosen", [[3, 4, 5, 6], [3, 5, 4, 9]])
def test_a_fill_is_waited_for_by_the_caches_thread_alone(codec: str, chosen: list[int], tmp_path: Path, stored: Stored) -> None:
    device, counting = SimulatedDevice(stuck={1}), CountingDevice()
    cache = cache_of(tmp_path, codec, device)
    try:
        with counting.running():
            cache.fill(chosen, [0] * 4, torch.zeros(4, *SHAPE, device=DEVICE))
        assert counting.total(READ).times == counting.total(BLOCKING).times == 0 and counting.total(COPY).times <= 2
        wait_until(lambda: cache._writer._busy)
        assert not stored.payloads, "the device has not come there"
        device.stuck.clear()
        assert cache.flush()
        assert [tuple(payload.shape) for payload in stored.payloads] == [(4, cache.codec.payload_bytes)]
    finally:
        cache.close()


def test_a_fill_of_a_device_that_fails_is_dropped_and_counted(tmp_path: Path, stored: Stored) -> None:
    cache = cache_of(tmp_path, "none", SimulatedDevice(errors={1: device_error()}))
    try:
        with CountingDevice().running():
            cache.fill([1, 2], [0, 0], torch.zeros(2, *SHAPE, device=DEVICE))
        assert cache.flush() and not stored.payloads
        assert cache.take_counts().dropped_fills == 2
        cache.fill([3], [0], torch.zeros(1, *SHAPE))
        assert cache.flush() and len(stored.payloads) == 1, "the thread goes on"
    finally:
        cache.close()


@pytest.fixture
def caching(tmp_path: Path) -> Iterator[tuple[CacheUse, Generation, RunState]]:
    """Return a lone worker whose first two units are frozen, with a cache without a server."""
    context = build_case(Case("vit", freezing=(), dropout=0.0))
    placement = Layout(1, 1).placement(0).model_copy(update={"use_cache": True})
    generation = Generation(context, lone_plan(placement), 0, lone_groups(), 0, lambda name: None)
    generation.freeze_to(2)
    state = RunState(freeze_point=2, decisions=[Decision(number=1, interval=1, effective_step=1, freeze_point=2, kind="freeze")])
    use = CacheUse(context, "127.0.0.1:1", "token", "worker", tmp_path)
    yield use, generation, state
    use.close()


def test_a_server_whose_address_comes_after_the_worker_registered_is_used(
    caching: tuple[CacheUse, Generation, RunState], tmp_path: Path
) -> None:
    _, generation, state = caching
    late = CacheUse(generation.context, "", "token", "late", tmp_path)
    try:
        late.connect(generation, state)
        assert late.cache is None, "there is no server"
        RunDirectory(tmp_path).cache_address.write_text("127.0.0.1:1\n")
        late.connect(generation, state)
        assert late.cache is not None
    finally:
        late.close()


def test_training_does_not_wait_for_the_digest_of_a_large_prefix(
    caching: tuple[CacheUse, Generation, RunState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads miss until the digest is there; the digest of a generation that is over is ignored."""
    use, generation, state = caching
    use.connect(generation, state)
    assert use.cache is not None and use.cache._boundary is not None, "a small one is waited for"
    small = use.cache._boundary.identity
    released = [threading.Event(), threading.Event()]
    hashed = iter(released)
    digest = cache_use.prefix_revision

    def slowly(*arguments: object) -> str:
        next(hashed).wait(30)
        return digest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cache_use, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(cache_use, "prefix_revision", slowly)
    use.connect(generation, state)
    rows = torch.empty(2, *generation.context.hidden_shape)
    assert use.cache._boundary is None and use.cache.read([0, 1], [0, 0], rows) == [False, False]
    assert use.cache._control.boundary is not None, "what was leased stays leased"
    first = use._asked
    use.connect(generation, state)
    second = use._asked
    assert first is not None and second is not None
    released[0].set()
    wait_until(lambda: first.known)
    assert use.cache._boundary is None, "the first one's generation is over"
    released[1].set()
    wait_until(lambda: second.known)
    assert use.cache._boundary is not None and use.cache._boundary.identity == small


def test_a_worker_without_a_place_in_the_plan_gives_its_leases_up(caching: tuple[CacheUse, Generation, RunState]) -> None:
    """Else the cache server would take the boundary that it was at for one in use, and keep its values."""
    use, generation, state = caching
    use.leave()
    use.connect(generation, state)
    assert use.cache is not None and use.cache._control.boundary is not None
    use.leave()
    assert use.cache._control.boundary is None
    use.leave()
    use.connect(generation, state)
    assert use.cache._control.boundary is not None, "it is a member again"


def test_a_worker_with_a_quota_pays_for_reads_ahead(
    caching: tuple[CacheUse, Generation, RunState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take the share that it computes with: five times their processor time, on a fifth of a processor."""
    use, generation, state = caching
    use.connect(generation, state)
    assert use.cache is not None
    monkeypatch.setattr(use.cache, "profile", lambda: CacheSeconds(0.5, 0.25, 0.125, 0.03125, 0.0625))
    measured = use.profile()
    assert measured is not None and measured.fetch_seconds_per_sample == 0.125, "hidden by the steps"
    job = use._context.job
    use._context.job = job.model_copy(update={"placement": job.placement.model_copy(update={"worker_cpus": 0.2})})
    measured = use.profile()
    assert measured is not None and measured.fetch_seconds_per_sample == pytest.approx((0.03125 + 0.0625) / 0.2)


def test_each_generation_audits_the_share_of_its_revision_of_the_job(caching: tuple[CacheUse, Generation, RunState]) -> None:
    use, generation, state = caching
    use.connect(generation, state)
    assert use.cache is not None and not use.cache.audit_due(1, 1)
    job = use._context.job
    use._context.job = job.model_copy(update={"cache": job.cache.model_copy(update={"shadow_audit_fraction": 1.0})})
    use.connect(generation, state)
    assert use.cache.audit_due(1, 1)


@pytest.mark.parametrize(("cached", "first"), [(True, 8), (False, 0)])
def test_a_score_behind_frozen_units_counts_as_a_use_of_the_cache(cached: bool, first: int) -> None:
    """If the cache turns out to be wrong, the run goes back to before this step, although no step has read a value."""
    bench = Bench()
    bench.generation.placement = bench.generation.placement.model_copy(update={"use_cache": cached})
    bench.box.put_decision(decision(2))
    bench.run()
    assert bench.state.cache_step == first
