"""profile.json: the measurements of one run, which another run of the same model and micro-batch size can be planned with."""

from frostline_contract.statistics import LinkProfile, WorkerProfile

PROFILE_VERSION = 1


class MeasuredProfile(WorkerProfile):
    """A worker's unit costs (seconds a micro-batch, bytes), and the links between workers where a generation had any.

    A plain WorkerProfile is one without links.
    """

    version: int = PROFILE_VERSION
    link: LinkProfile | None = None
