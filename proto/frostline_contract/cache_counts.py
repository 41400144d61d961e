"""What a worker counts of its use of the activation cache: the fields of ReportUse and Statistics (frostline_proto/v1/cache.proto)."""

CACHE_COUNTS = (
    "hits",
    "misses",
    "fills",
    "dropped_fills",
    "refused_fills",
    "corrupt",
    "bytes_read",
    "bytes_written",
    "read_seconds",
    "write_seconds",
    "audited",
    "audit_failures",
)
