"""The file profile.json: the measurements of one run, for planning other runs of the same model and micro-batch size."""

from frostline_contract.statistics import CacheProfile, LinkProfile, WorkerProfile

PROFILE_VERSION = 1


class MeasuredProfile(WorkerProfile):
    """A worker's measured costs (seconds a micro-batch, bytes), with later measurements of the run.

    A plain WorkerProfile is valid as one without later measurements.

    Attributes:
        link: between workers; None: no generation has measured links.
        cache: the cache's traffic; None: no generation has measured it.
        prefix_cost: time of computing frozen units over their measured forward (`RunIdentity.prefix_cost`).
    """

    version: int = PROFILE_VERSION
    link: LinkProfile | None = None
    cache: CacheProfile | None = None
    prefix_cost: float = 1.0
