"""The answer to a failure: wait for more reports, go on, go back, or raise the run's epoch. Pure; it decides in production."""

from frostline_controller.recovery.facts import Answer, Failure, GoBack, GoOn, NewEpoch, Wait
from frostline_controller.recovery.may_start import awaited, unvouched
from frostline_controller.recovery.target import find_target, missing_pieces


def answer(failure: Failure) -> Answer:
    """What to do about `failure` now (docs/protocols.md 4).

    Wait: somebody that is reached may still report, and only when nobody does may a plan lose a step or send state away.
    NewEpoch: a generation may run on where nobody sees it. GoOn: all pieces from the newest whole state. GoBack: no state is.
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
    if target is None:
        lacking = missing_pieces(failure)
        units = failure.pieces.units_of(lacking)
        return GoBack(lacking, f"units {units} are held by nobody at one step")
    return GoOn(target.state, target.holders, target.state_source, target.vote, target.extends_all)
