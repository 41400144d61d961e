"""Whether a run may use a Redis that others can write to."""

from pathlib import Path

from frostline_contract.cache_tag import SECRET_VARIABLE, read_secret
from frostline_contract.job.cluster import CacheSection


def unsigned_refusal(section: CacheSection, run_dir: Path | None = None) -> str | None:
    """Why the servers that a job names are not used, with what to do; None where nothing speaks against it.

    Values of the run's own Redis need no such word: nobody else has its password. run_dir: where a secret may lie; None: only the
    environment can give one. Raises ValueError for a secret that is too short, OSError.
    """
    if not section.addresses or section.trusted or read_secret(run_dir) is not None:
        return None
    return (
        f"cache.addresses is {list(section.addresses)}: others may write there, and no secret signs this run's values; "
        f"set {SECRET_VARIABLE} to a secret that all who share this cache have (on a cluster: kubernetes.cache_secret), "
        "or cache.trusted: true where everybody who can write there may decide this run's results"
    )
