"""The counts of the cache server as Prometheus metrics: totals of all workers since it started, and the present shards."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from frostline_cache_server.shards import ShardMap

UNITS = {"bytes_read": "read_bytes", "bytes_written": "written_bytes"}
"""Names with the unit last, as Prometheus has them."""


class CacheMetrics:
    """The cache server's Prometheus metrics.

    Args:
        totals: by the names of `CACHE_COUNTS`, changed by the service.
        shards: the shard map, with the memory that the shards use.
        limit_bytes: limit of all shards together.
    """

    def __init__(self, totals: Mapping[str, float], shards: ShardMap, limit_bytes: int) -> None:
        self._totals, self._shards, self._limit_bytes = totals, shards, limit_bytes

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment; prometheus_client calls this at each scrape."""
        for name, total in dict(self._totals).items():
            shown = UNITS.get(name, name)
            yield CounterMetricFamily(f"frostline_cache_{shown}", f"Workers' {name.replace('_', ' ')} so far.", total)
        up = GaugeMetricFamily("frostline_cache_shard_up", "1 while the shard answers.", labels=["shard"])
        for shard in self._shards.shards:
            up.add_metric([f"{shard.host}:{shard.port}"], float(shard.up))
        yield up
        yield GaugeMetricFamily("frostline_cache_memory_used_bytes", "Memory that the shards use.", self._shards.memory_used)
        yield GaugeMetricFamily("frostline_cache_memory_limit_bytes", "Memory that they may use.", self._limit_bytes)


def registry_of(totals: Mapping[str, float], shards: ShardMap, limit_bytes: int) -> CollectorRegistry:
    """Return a registry with only the cache server's metrics."""
    registry = CollectorRegistry()
    registry.register(CacheMetrics(totals, shards, limit_bytes))
    return registry
