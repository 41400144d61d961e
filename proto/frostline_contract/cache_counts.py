"""Names of a worker's counters of activation cache use: fields of ReportUse and of Statistics in cache.proto."""

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
