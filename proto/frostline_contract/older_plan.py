"""Plans from before there were pieces: their sources and buddies are worker ids."""

from collections.abc import Callable, Mapping
from typing import Any

from frostline_contract.pieces import NOBODY


def named_by_index(values: Mapping[str, Any], members: Callable[[], tuple[str, ...]]) -> dict[str, Any]:
    """A plan's values with sources and buddies as indices, which count where a message has both.

    Args:
        values: of the fields, by name.
        members: gives the members by global rank.

    Raises:
        ValueError: for a worker that is no participant.
    """
    found = {name: value for name, value in values.items() if name not in ("sources", "buddies")}
    found |= {name: values.get(name) or 1 for name in ("state_ranges", "state_tiles", "hidden_tiles")}
    for older, name in (("sources", "source_indices"), ("buddies", "buddy_indices")):
        if values.get(older) and not values.get(name):
            places = {worker: place for place, worker in enumerate((*members(), *values.get("leavers", ())))}
            if unknown := sorted(set(values[older]) - places.keys() - {""}):
                raise ValueError(f"{older} name {unknown[0]!r}, which is no participant of the plan")
            found[name] = tuple(places.get(worker, NOBODY) for worker in values[older])
    return found
