"""The frozen prefix's output for any set of samples: read from the cache, advanced from the previous boundary, or computed.

Computation runs in tiles of the micro-batch's shape, or one sample at a time if the machine's kernels need that (`tile_check`).
So a boundary activation has the same bits whether it was computed, cached or advanced, and beside whichever samples. If padding
does not matter (`own_tokens`), its rows are zero.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from frostline_trainer.data.split import inputs_of
from frostline_trainer.replication.wrong_bits import CacheDiffers
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.stage import Stage
from frostline_trainer.step.transfer import gather, host_memory_for, scatter, to_device


class PrefixReader:
    """Boundary activations of one split at one freeze point, on a worker of stage 0.

    Args:
        context: the run's model, on this worker.
        stage: holds units [0, freeze_point).
        split: the split.
        cache: a BoundaryCache that is set to this boundary.
        freeze_point: the boundary.
        previous_boundary: the boundary whose values may still be read and advanced; None: there is none.

    Attributes:
        waited_seconds: for which the cache was waited for, hits and misses, in all.
    """

    def __init__(self, context: RunContext, stage: Stage, split: Any, cache: Any, freeze_point: int,
                 previous_boundary: int | None) -> None:  # fmt: skip
        self._context, self._stage, self._split, self._cache = context, stage, split, cache
        self._freeze_point, self._previous_boundary = freeze_point, previous_boundary
        self._pad_row: torch.Tensor | None = None
        self.waited_seconds = 0.0

    def rows(self, samples: Sequence[int], variants: Sequence[int]) -> torch.Tensor:
        """The boundary activations of `samples` (-1: padding), shape (len(samples), tokens, width)."""
        context = self._context
        if min(samples, default=-1) >= 0:
            taken = self._waited(self._cache.take, samples, variants, context.device)
            if taken is not None:
                return taken
        out = torch.empty(len(samples), *context.hidden_shape, dtype=context.dtype, device=context.device)
        real = [place for place, sample in enumerate(samples) if sample >= 0]
        missing = self._read(samples, variants, real, out)
        if self._previous_boundary is not None and missing:
            missing = self._advance(samples, variants, missing, out)
        if missing:
            self._compute(samples, variants, missing, out, first=0)
        for place, sample in enumerate(samples):
            if sample < 0:
                out[place] = self._padding_row()
        return out

    def prefetch(self, samples: Sequence[int], variants: Sequence[int]) -> None:
        """Prefetch the samples that a coming step will read."""
        places = [place for place, sample in enumerate(samples) if sample >= 0]
        self._cache.prefetch([samples[place] for place in places], [variants[place] for place in places])

    def audit(self, samples: Sequence[int], variants: Sequence[int], rows: torch.Tensor, step: int) -> None:
        """Shadow audit: recompute the micro-batches that are due, and compare bits. Raises CacheDiffers.

        A micro-batch is due as a whole: all replicas wait for it, and a padded tile takes as long for one sample as for all.
        """
        size = self._context.micro_batch_size
        for start in range(0, len(samples), size):
            tile = [place for place in range(start, min(start + size, len(samples))) if samples[place] >= 0]
            if not tile or not self._cache.audit_due(samples[tile[0]], step):
                continue
            again, found = self._rounded(self._run_tile(samples, variants, tile, rows, first=0)), gather(rows, tile)
            equal = torch.equal(again, found)
            for row, place in enumerate(tile):
                self._cache.report_audit(equal or torch.equal(again[row], found[row]), samples[place])
            if not equal:
                where = f"of the {self._split.name} split at boundary {self._freeze_point}"
                raise CacheDiffers(f"cached activations {where} differ from recomputed ones, step {step}")

    def _read(self, samples: Sequence[int], variants: Sequence[int], places: list[int], out: torch.Tensor) -> list[int]:
        """Read cached values into `out`; returns the places of the misses."""
        landing = self._landing(len(places))
        hits = self._waited(self._cache.read, [samples[p] for p in places], [variants[p] for p in places], landing)
        self._take(landing, places, hits, out)
        return [place for place, hit in zip(places, hits, strict=True) if not hit]

    def _waited(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Read from the cache, and count the seconds."""
        started = time.monotonic()
        found = read(*arguments)
        self.waited_seconds += time.monotonic() - started
        return found

    def _landing(self, rows: int) -> torch.Tensor:
        """A receive buffer in host memory for rows, from which the device copies them."""
        return host_memory_for(self._context.device, (rows, *self._context.hidden_shape), self._context.dtype)

    def _take(self, landing: torch.Tensor, places: list[int], hits: list[bool], out: torch.Tensor) -> None:
        """Copy the rows that were hit from the receive buffer to their places."""
        rows = [row for row, hit in enumerate(hits) if hit]
        scatter(out, [places[row] for row in rows], gather(landing, rows) if rows else landing)

    def _advance(self, samples: Sequence[int], variants: Sequence[int], places: list[int], out: torch.Tensor) -> list[int]:
        """Read at the previous boundary, run the newly frozen units, write at the new one, drop the old value."""
        assert self._previous_boundary is not None
        landing = self._landing(len(places))
        hits = self._waited(self._cache.read_previous, [samples[p] for p in places], [variants[p] for p in places], landing)
        found = [place for place, hit in zip(places, hits, strict=True) if hit]
        self._take(landing, places, hits, out)
        if found:
            self._compute(samples, variants, found, out, first=self._previous_boundary)
            self._cache.drop_previous([samples[p] for p in found], [variants[p] for p in found])
        return [place for place, hit in zip(places, hits, strict=True) if not hit]

    def _compute(self, samples: Sequence[int], variants: Sequence[int], places: list[int], out: torch.Tensor, first: int) -> None:
        """Run units [first, freeze_point) for the rows at `places`, in tiles, and store the results.

        The cache gets values that have not been through the codec: encoding twice may change bits.

        Args:
            samples, variants: of all rows.
            places: the rows to compute.
            out: (rows, tokens, width); rows at `places` hold the inputs if `first` is above 0, and the results afterwards.
            first: the first unit to run.
        """
        size = self._context.micro_batch_size
        for start in range(0, len(places), size):
            tile = places[start : start + size]
            raw = self._run_tile(samples, variants, tile, out, first)
            self._cache.fill([samples[p] for p in tile], [variants[p] for p in tile], raw)
            scatter(out, tile, self._rounded(raw))

    def _run_tile(
        self, samples: Sequence[int], variants: Sequence[int], tile: list[int], out: torch.Tensor, first: int
    ) -> torch.Tensor:
        """Compute one tile and return its rows, before the codec.

        The tile is padded to the micro-batch's shape, unless samples are computed singly.

        Args:
            samples, variants, out, first: as in `_compute`.
            tile: the rows to compute, at most a micro-batch.
        """
        padding = [] if self._stage.settings.one_sample_tiles else [-1] * (self._context.micro_batch_size - len(tile))
        indices, kinds = [samples[p] for p in tile] + padding, [variants[p] for p in tile] + [0] * len(padding)
        inputs = self._context.on_device(inputs_of(self._split, indices, kinds, samples=first == 0))
        hidden = None
        if first > 0:
            hidden = torch.zeros(
                len(indices), *self._context.hidden_shape, dtype=self._context.dtype, device=self._context.device
            )
            hidden[: len(tile)] = gather(out, tile)
        rows = self._stage.run_frozen(hidden, inputs, first, self._freeze_point, round_last=False)[: len(tile)]
        return self._without_padding(rows, [samples[place] for place in tile])

    def _without_padding(self, rows: torch.Tensor, samples: Sequence[int]) -> torch.Tensor:
        """The rows with zeros for padding, as a hit has them."""
        if self._cache.own_tokens is None:
            return rows
        lengths = to_device(torch.as_tensor(self._cache.own_tokens[list(samples)]), rows.device)
        padding = torch.arange(rows.shape[1], device=rows.device) >= lengths[:, None]
        return rows.masked_fill(padding[:, :, None], 0)

    def _rounded(self, rows: torch.Tensor) -> torch.Tensor:
        settings = self._stage.settings
        return (
            settings.round_trip(rows) if settings.round_trip is not None and self._freeze_point in settings.codec_chain else rows
        )

    def _padding_row(self) -> torch.Tensor:
        if self._pad_row is None:
            inputs = self._context.on_device(
                self._split.collate([-1] * self._context.micro_batch_size, [0] * self._context.micro_batch_size)
            )
            self._pad_row = self._rounded(self._stage.run_frozen(None, inputs, 0, self._freeze_point, round_last=False))[0]
        return self._pad_row
