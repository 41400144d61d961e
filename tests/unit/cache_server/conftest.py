"""Real Redis servers; nothing here needs torch."""

from redis_fixture import redis_server, start_shard

__all__ = ["redis_server", "start_shard"]
