"""Real Redis servers for these tests, whatever else a conftest above provides."""

from redis_fixture import redis_server, start_shard

__all__ = ["redis_server", "start_shard"]
