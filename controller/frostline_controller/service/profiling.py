"""profile.json: what the run's workers measured, for `frostline plan --profile`."""

import asyncio

from frostline_controller.cluster.local_backend import replace_durably
from frostline_controller.measured import MeasuredProfile
from frostline_controller.planning import measured_link, reference_profile
from frostline_controller.service.run import Run


class ProfileFile:
    """Written when the first plan exists, and again whenever a later generation has measured its links."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._written: MeasuredProfile | None = None

    async def advance(self) -> None:
        """Write what has changed; the file is whole at any moment."""
        run = self._run
        workers = tuple(run.members.available())
        if run.current is None or not workers:
            return
        known = self._written
        profile = MeasuredProfile(
            **(known.model_dump(include={"micro_batch_size", "units", "device", "memory_bytes"}) if known is not None
               else reference_profile(workers, run.parallel_slots is not None).model_dump()),
            link=measured_link(workers) or (known.link if known is not None else None),
        )  # fmt: skip
        if profile == known:
            return
        self._written = profile
        await asyncio.to_thread(replace_durably, run.folder / "profile.json", profile.model_dump_json(indent=2) + "\n")
