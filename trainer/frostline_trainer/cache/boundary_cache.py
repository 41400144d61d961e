"""The interface of the activation cache for the trainer: reads boundary activations by sample, and stores those that missed."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from frostline_contract.cache_identity import CacheIdentity, admitted
from frostline_contract.cache_tag import read_secret, tags_of
from frostline_contract.job.cluster import CacheSection
from frostline_contract.seeds import seed_of
from frostline_trainer.cache.codec import Codec, as_bytes, make_codec
from frostline_trainer.cache.control import Boundary, Control
from frostline_trainer.cache.counts import CacheCounts, CacheSeconds, Meter
from frostline_trainer.cache.lane import Lane, Shard
from frostline_trainer.cache.prefetch import Prefetcher
from frostline_trainer.cache.values import ValueLayout, read_values
from frostline_trainer.cache.writer import Writer
from frostline_trainer.step.device_clock import DeviceClock, HostClock
from frostline_trainer.step.transfer import gather, to_host

log = logging.getLogger(__name__)

SCATTER = 0x9E3779B97F4A7C15
"""An odd number near 2**64 over the golden ratio, whose multiples are spread evenly modulo 2**64."""


class BoundaryCache:
    """The activation cache of one worker. No method raises an error of Redis or of the cache server.

    Threads: every method may be called from any thread. `read` and `read_previous` are serialised by a lock and block at most
    READ_SECONDS_MAX + one shard's silence (2 s; a dead shard costs one silence of 0.5 s, then its keys miss at once), plus at
    most WAIT_SECONDS_MAX (2 s) for a prefetch on its way. `fill` costs one copy. Everything else returns at once, except
    `close`, `flush`, `await_shards` and `await_admission`.

    `samples` and `variants` are equally long; variant 0 is the sample without augmentation.

    Args:
        cache_address: host:port of the cache server. `<run_dir>/cache.address` is preferred if it exists, because a restarted
            cache server writes it. While the server cannot be reached, reads miss.
        token: Of this worker's role, or the path of a file that holds it.
        worker_id: The worker for which the cache server counts the use.
        section: The job's `cache`.
        value_shape, dtype: (tokens, width) of one sample's boundary activation, and the compute type.
        run_dir: Values are signed with the secret of the environment or of this directory, if there is one.
        pin_memory: Receive into page-locked memory, for rows that are copied to a GPU.
        device_clock: Clock of the device on which rows to be stored are.
        keep_previous: Keep the values of the previous boundary, since other runs may begin there.
        names: The name of each sample in all keys, by the sample's place in the split; None: the place itself.
        own_tokens: Number of each sample's own tokens, by its place in the split; rows have zeros behind them. None: all tokens.
        audit_seed: Draws what is audited, beside step and sample; the same for all workers that must audit together.

    Raises:
        ValueError: An invalid codec, shape, dtype or secret.
    """

    def __init__(
        self,
        cache_address: str,
        token: str,
        worker_id: str,
        section: CacheSection,
        value_shape: tuple[int, int],
        dtype: torch.dtype,
        run_dir: Path,
        pin_memory: bool = False,
        device_clock: Callable[[], DeviceClock] = HostClock,
        keep_previous: bool = False,
        names: Sequence[int] | np.ndarray | None = None,
        own_tokens: np.ndarray | None = None,
        audit_seed: int = 0,
    ) -> None:
        self.codec: Codec = make_codec(section.codec, value_shape, dtype)
        self._layout = ValueLayout(self.codec, tags_of(read_secret(run_dir)), names, own_tokens)
        self.own_tokens, self.audit_fraction = own_tokens, section.shadow_audit_fraction
        self.prefetch_steps = section.prefetch_steps
        self._pin_memory, self._device_clock, self._keep_previous = pin_memory, device_clock, keep_previous
        self._audit_seed = audit_seed
        self._suspended = False
        self._meter = Meter()
        self._distrusted: set[CacheIdentity] = set()
        self.before_fill: Callable[[Tensor], Tensor] | None = None
        self._staging = torch.empty(0, self.codec.payload_bytes, dtype=torch.uint8)
        self._control = Control(cache_address, token, worker_id, run_dir, self._layout.mean_value_bytes, self._meter)
        self._read_lock = threading.Lock()
        self._lane = Lane(self._shards)
        self._writer = Writer(Lane(self._shards), self._layout, self.codec, self._meter, self._may_write)
        self._prefetcher = Prefetcher(Lane(self._shards), self._layout, pin_memory, self._meter.count_ahead)

    # The boundary -----------------------------------------------------------------------------------------------------

    def set_boundary(self, identity: CacheIdentity, previous: CacheIdentity | None, num_values: int) -> None:
        """Use the cache for `identity` from now on; `previous` stays readable by `read_previous`.

        Returns at once: reads may hit from now on (values of other workers or runs), and fills start after the server's
        admission.

        Args:
            num_values: samples x variants that the identity can have; admission follows from it.
        """
        self._control.set_boundary(identity, previous, num_values)
        self._prefetcher.forget_all()
        self._meter.leave_out(self.prefetch_steps)  # no prefetch can hide these reads, so their wait is no usual one
        self._suspended = False

    def suspend(self) -> None:
        """Let reads miss and drop fills until the next `set_boundary`; leases are kept."""
        self._suspended = True
        self._prefetcher.forget_all()

    def clear_boundary(self) -> None:
        """Stop using the cache, since nothing is frozen or the planner decided so: reads miss, fills are dropped."""
        self._control.clear_boundary()
        self._prefetcher.forget_all()

    # Reading ----------------------------------------------------------------------------------------------------------

    def read(self, samples: Sequence[int], variants: Sequence[int], out: Tensor) -> list[bool]:
        """Fill out[i] with sample i's boundary activation; False: a miss, and out[i] is undefined.

        Args:
            out: (n, tokens, width) of the compute type, on any device. Values are received into it directly if it is a contiguous
                host tensor and the codec is `none`.
        """
        boundary = self._boundary
        if boundary is None or boundary.identity in self._distrusted:
            self._meter.add(misses=len(samples))
            return [False] * len(samples)
        with self._meter.waiting():
            hits = self._read_identity(boundary.identity, samples, variants, out, take_prefetched=True)
        self._meter.count_used(hits)
        return hits

    def take(self, samples: Sequence[int], variants: Sequence[int], device: torch.device) -> Tensor | None:
        """All samples' boundary activations, (n, tokens, width) on `device`, if all were prefetched in this order.

        They are used in their receive buffer (page-locked for a GPU), without a copy in the host. None if one missed or was
        prefetched in another order: then `read` returns those that there are.
        """
        boundary = self._control.boundary
        if boundary is None or boundary.identity in self._distrusted:
            return None
        with self._meter.waiting():
            payloads = self._prefetcher.take_whole(boundary.identity, samples, variants)
            rows = self.codec.decode(payloads.to(device, non_blocking=True)) if payloads is not None else None
        if rows is not None:
            self._meter.count_used([True] * len(samples), prefetched=True)
        return rows

    def read_previous(self, samples: Sequence[int], variants: Sequence[int], out: Tensor) -> list[bool]:
        """As `read`, at the previous boundary; the caller advances the hits through the newly frozen units."""
        boundary = self._boundary
        if boundary is None or boundary.previous is None or boundary.previous in self._distrusted:
            return [False] * len(samples)
        hits = self._read_identity(boundary.previous, samples, variants, out, take_prefetched=False)
        if any(hits):
            self._control.previous_used_at = time.monotonic()
        self._meter.add(previous_hits=sum(hits))
        return hits

    def prefetch(self, samples: Sequence[int], variants: Sequence[int]) -> None:
        """Read these samples in the background for a later `read`. A miss now is a miss of that read too."""
        boundary = self._boundary
        if boundary is not None and boundary.identity not in self._distrusted:
            self._prefetcher.ask(boundary.identity, samples, variants)

    # Writing ----------------------------------------------------------------------------------------------------------

    def fill(self, samples: Sequence[int], variants: Sequence[int], rows: Tensor) -> None:
        """Store computed activations in the background; only admitted ones, and only while the queue has room.

        Args:
            rows: (n, tokens, width), the prefix's own output, NOT its round trip: encoding twice may change bits. The rows are
                copied.
        """
        boundary = self._boundary
        if boundary is None or boundary.fraction <= 0.0 or boundary.identity in self._distrusted:
            return
        if self.before_fill is not None:
            rows = self.before_fill(rows)
        pairs = zip(map(self._layout.name, samples), variants, strict=True)
        chosen = [i for i, (name, variant) in enumerate(pairs) if admitted(name, variant, boundary.fraction)]
        room = self._writer.room_for(
            len(chosen), self.codec.value_shape[0] * self.codec.value_shape[1] * self.codec.dtype.itemsize
        )
        self._meter.add(dropped_fills=len(chosen) - room)
        chosen = chosen[:room]
        if not chosen:
            return
        names = boundary.identity, [samples[i] for i in chosen], [variants[i] for i in chosen]
        if rows.device.type == "cpu":
            self._writer.fill(*names, rows.detach()[torch.tensor(chosen)], encoded=False)
            return
        # Rows on a GPU are encoded there, like the round trip, so that both have the same bits.
        payloads = to_host(self.codec.encode(gather(rows.detach(), chosen)))
        self._writer.fill(*names, payloads, encoded=True, copied=self._device_clock().mark())

    def drop_previous(self, samples: Sequence[int], variants: Sequence[int]) -> None:
        """Remove samples from the previous boundary, in the background, after the fills queued so far, unless they are kept."""
        boundary = self._boundary
        if not self._keep_previous and boundary is not None and boundary.previous is not None:
            self._writer.drop(boundary.previous, samples, variants)

    def flush(self, seconds: float = 10.0) -> bool:
        """Wait until queued fills and drops are done. Returns whether that was within `seconds`."""
        return self._writer.flush(seconds)

    # Audit and accounts -----------------------------------------------------------------------------------------------

    def audit_due(self, sample: int, step: int) -> bool:
        """Whether a step's micro-batch that begins with this sample is recomputed: a fixed share, equal for equal audit_seeds."""
        return ((seed_of("audit", step) + self._audit_seed + sample) * SCATTER) % 2**64 < self.audit_fraction * 2**64

    def report_audit(self, ok: bool, sample: int) -> None:
        """Count a recomputed hit, of `sample`. If it differs, this worker no longer uses values of this boundary."""
        self._meter.add(audited=1, audit_failures=int(not ok))
        boundary = self._control.boundary
        if not ok and boundary is not None:
            self._distrusted.add(boundary.identity)
            self._prefetcher.forget_all()
            where = boundary.identity.boundary
            log.error("sample %d of boundary %d differs from its cached value: the boundary is not read any more", sample, where)

    def await_shards(self, seconds: float) -> None:
        """Wait, at most so long, until the cache server has been asked once for its shard map."""
        self._control.asked.wait(seconds)

    def await_admission(self, seconds: float) -> None:
        """Wait, at most so long, until the cache server has been asked once to admit the boundary's values."""
        self._control.asked_to_admit.wait(seconds)

    @property
    def usable(self) -> bool:
        """Whether any shard is known and up now."""
        return any(shard.up for shard in self._shards())

    def take_counts(self) -> CacheCounts:
        """The counts since the last call."""
        return self._meter.since_last("take")

    def bytes_moved(self) -> tuple[int, int]:
        """(written, read) over this cache's life."""
        return self._meter.bytes_moved()

    def profile(self) -> CacheSeconds:
        """Measured seconds per sample, for the use decision."""
        return self._meter.profile()

    def close(self) -> None:
        """Stop the threads; what is still queued is dropped."""
        self._writer.close()
        self._prefetcher.close()
        self._control.close()
        with self._read_lock:
            self._lane.close()

    # Inside -----------------------------------------------------------------------------------------------------------

    @property
    def _boundary(self) -> Boundary | None:
        return None if self._suspended else self._control.boundary

    def _shards(self) -> tuple[Shard, ...]:
        return self._control.shards

    def _may_write(self, identity: CacheIdentity) -> bool:
        boundary = self._control.boundary
        return boundary is not None and boundary.identity == identity and identity not in self._distrusted

    def _read_identity(
        self, identity: CacheIdentity, samples: Sequence[int], variants: Sequence[int], out: Tensor, take_prefetched: bool
    ) -> list[bool]:
        """Collect the payloads of prefetched and of newly fetched samples, and decode them into `out`."""
        assert tuple(out.shape) == (len(samples), *self.codec.value_shape), f"out {tuple(out.shape)} for {len(samples)} samples"
        if not samples:
            return []
        with self._read_lock:
            direct = self.codec.name == "none" and out.device.type == "cpu" and out.is_contiguous()
            payloads = as_bytes(out.detach()) if direct else self._staging_rows(len(samples))
            hits = [False] * len(samples)
            taken = self._prefetcher.take(identity, samples, variants) if take_prefetched else [None] * len(samples)
            for index, prefetched in enumerate(taken):
                if prefetched is not None and prefetched.payload is not None:
                    payloads[index].copy_(prefetched.payload)
                    hits[index] = True
            for index, hit in self._fetch(identity, samples, variants, payloads, [i for i, t in enumerate(taken) if t is None]):
                hits[index] = hit
            if not direct:
                self._decode(payloads, hits, out)
            return hits

    def _fetch(
        self, identity: CacheIdentity, samples: Sequence[int], variants: Sequence[int], payloads: Tensor, wanted: list[int]
    ) -> list[tuple[int, bool]]:
        """Fetch samples[i] into payloads[i] for i in wanted."""
        if not wanted:
            return []
        chosen = [samples[i] for i in wanted], [variants[i] for i in wanted]
        result = read_values(self._lane, self._layout, identity, *chosen, memoryview(payloads.view(-1).numpy()), wanted)
        self._meter.count_read(result)
        return list(zip(wanted, result.hits, strict=True))

    def _decode(self, payloads: Tensor, hits: list[bool], out: Tensor) -> None:
        """Decode hits only: the bytes of a torn value are not numbers."""
        rows = [index for index, hit in enumerate(hits) if hit]
        if len(rows) == len(hits):
            self.codec.decode_into(payloads.to(out.device), out)
        elif rows:
            chosen = torch.tensor(rows)
            out[chosen.to(out.device)] = self.codec.decode(payloads[chosen].to(out.device))

    def _staging_rows(self, rows: int) -> Tensor:
        if self._staging.shape[0] < rows:
            self._staging = torch.empty(rows, self.codec.payload_bytes, dtype=torch.uint8, pin_memory=self._pin_memory)
        return self._staging[:rows]
