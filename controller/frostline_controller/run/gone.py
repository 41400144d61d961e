"""Whether a run's checkpoints are gone: the checkpoint root is empty and should not be (not mounted, removed, or lost)."""

from pathlib import Path

from frostline_contract.epochs import EPOCHS_FOLDER
from frostline_controller.run.checkpoints import has_been_used
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore


def why_gone(facts: RunFacts, store: RunStore, root: Path) -> str:
    """Return why the run must not begin, or end, as if it had no checkpoints; empty where they are there, or there were none.

    The root should not be empty where the run has written a checkpoint, started from one, or begun a second run epoch; nor where
    the run has taken decisions, but its directory has no record of a step.

    Args:
        facts, store: the run's.
        root: of its checkpoints.
    """
    current = facts.current
    had = store.events.counts["checkpoint"] or (current is not None and (current.run_epoch > 1 or current.checkpoint_path))
    lost = facts.state.decisions and store.records.latest is None
    if not (had or lost) or has_been_used(root):
        return ""
    what = "has had checkpoints" if had else f"has decided on intervals of which {store.places.path} has no record"
    return (
        f"the run {what}, and {root} holds no checkpoint: waiting until that folder is mounted or restored; "
        f"to train again from step 0 make the folder {root / EPOCHS_FOLDER}"
    )
