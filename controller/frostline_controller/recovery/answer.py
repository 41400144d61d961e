"""The answer to a failure: wait for more reports, go on, go back, or raise the run epoch. Pure: the model checker calls it."""

from frostline_controller.recovery.facts import Answer, Failure, GoBack, NewEpoch, Wait
from frostline_controller.recovery.may_start import awaited, unvouched
from frostline_controller.recovery.target import find_target, missing_pieces


def answer(failure: Failure) -> Answer:
    """Return the answer to `failure` as of now (docs/protocols.md 4).

    Returns:
        Wait: some workers may still report. A plan made without their reports could lose a step that they hold.
        NewEpoch: a generation may still be running, and the controller cannot reach any of its members.
        GoOn: every piece can be brought to one state, the newest that the survivors hold completely.
        GoBack: the survivors hold no state completely.
    """
    missing = awaited(failure)
    if missing:
        return Wait(missing)
    running = unvouched(failure)
    if running:
        silent = ", ".join(sorted(failure.silent)) or "none"
        named = ", ".join(str(generation) for generation in running)
        return NewEpoch(running, f"generation {named} may still run and none of its members reports (silent: {silent})")
    target = find_target(failure)
    if target is not None:
        return target
    lacking = missing_pieces(failure)
    units = failure.pieces.units_of(lacking)
    return GoBack(lacking, f"units {units} are held by nobody at one step")
