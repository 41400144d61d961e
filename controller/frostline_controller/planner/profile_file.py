"""profile.json: the measurements of one run, which another run of the same model and micro-batch size can be planned with."""

from frostline_contract.statistics import CacheProfile, LinkProfile, WorkerProfile

PROFILE_VERSION = 1


class MeasuredProfile(WorkerProfile):
    """A worker's costs (seconds a micro-batch, bytes), and what the run measured later: None where it has not.

    link: between workers, where a generation had any. cache: its traffic, where a generation had any. prefix_cost: of computing
    frozen units, over their measured forward (`RunIdentity.prefix_cost`). A plain WorkerProfile is one without these.
    """

    version: int = PROFILE_VERSION
    link: LinkProfile | None = None
    cache: CacheProfile | None = None
    prefix_cost: float = 1.0
