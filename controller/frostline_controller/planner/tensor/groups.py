"""Groups of workers that share stages tile by tile: how they are formed, and a group seen as one member.

Members of a group exchange sums in every block, so a *node* is here the workers with fast links between them: those of a machine;
where a worker's machine is not known, those of its failure domain; a worker with neither is a node of its own. A failure domain
alone would not do: it says which workers are lost together, and may be wider than a machine (a rack) or, on a local cluster,
narrower (simulated nodes of one machine). It counts second: among workers of one node those of one domain are grouped first, so
that a lost domain breaks few groups.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from frostline_contract.shape import group_of
from frostline_controller.planner.inputs import MemberInfo

Group = tuple[MemberInfo, ...]


class NoGroups(ValueError):
    """The members cannot form groups of that size; the message says why."""


def node_of(member: MemberInfo) -> str:
    """Return the name of the member's node; see the module."""
    return member.machine or member.failure_domain or f"alone/{member.worker_id}"


def by_node(members: Iterable[MemberInfo]) -> list[list[MemberInfo]]:
    """Return the members of each node, in their order."""
    return _apart(members, node_of)


def lie_at_home(groups: Iterable[Sequence[MemberInfo]]) -> bool:
    """Whether no group leaves its node."""
    return all(len({node_of(member) for member in group}) <= 1 for group in groups)


def ranks_at_home(groups: Iterable[Sequence[MemberInfo | None]]) -> int:
    """Return how many consecutive members of every group lie in one node: the largest power of two for which all parts of so many
    do, a group's size where no group leaves its node. None: a member of which nothing is known any more; it changes nothing."""
    return min((_at_home([None if member is None else node_of(member) for member in group]) for group in groups), default=1)


def _at_home(nodes: Sequence[str | None]) -> int:
    count = len(nodes)
    while count > 1 and any(len(set(nodes[first : first + count]) - {None}) > 1 for first in range(0, len(nodes), count)):
        count //= 2
    return count


def form_groups(members: Iterable[MemberInfo], size: int) -> list[Group]:
    """Return as many groups of `size` members as there can be, those of near members first; members left over are in no group.

    Groups are formed within a node and one failure domain, of members left over within a node, then within a domain, and at last
    of any. Among members that are equally near, groups of the current placement stay as they are, then neighbours in it are
    grouped, so that a reshape moves little state; members without a place come last, by falling speed. A group over several nodes
    has parts of one node each, halves before quarters, so that its innermost axis leaves a node only where it must.
    """
    left = sorted(members, key=lambda one: (one.global_rank < 0, one.global_rank, -one.speed, one.worker_id))
    groups = list[Group]()
    for place_of in (_node_and_domain, node_of, lambda one: one.failure_domain, lambda _: ""):
        crews, left = _apart(left, place_of), []
        for crew in crews:
            ordered = _whole_groups_first(crew, size)
            whole = len(crew) - len(crew) % size
            groups += (tuple(ordered[first : first + size]) for first in range(0, whole, size))
            left += ordered[whole:]
    return groups


def form_groups_of_nodes(members: Sequence[MemberInfo], size: int) -> list[Group]:
    """Return groups of which each lies in one node, where every node is large enough; else groups of whole nodes.

    Nodes then count as equal: of each as many members are used as the smallest node has.

    Raises:
        NoGroups: groups of that size are no whole nodes.
    """
    nodes = by_node(members)
    smallest = min(map(len, nodes))
    if size <= smallest:
        return [group for group in form_groups(members, size) if lie_at_home([group])]
    if size % smallest or len(nodes) * smallest < size:
        raise NoGroups(f"groups of {size} are no whole nodes of {smallest} workers")
    return form_groups([member for node in nodes for member in node[:smallest]], size)


def as_one(group: Group) -> MemberInfo:
    """Return a group as one member, in the first member's place: as fast as its slowest, with the memory of its smallest.

    It fails with any of its members' failure domains, and is on no machine where its members are on several.
    """
    first, domains = group[0], sorted({member.failure_domain for member in group})
    return replace(
        first,
        failure_domain=" and ".join(domains),
        machine=first.machine if len({member.machine for member in group}) == 1 else "",
        memory_bytes=min((member.memory_bytes for member in group if member.memory_bytes > 0), default=0),
        speed=min(member.speed for member in group),
    )


def _whole_groups_first(crew: Sequence[MemberInfo], size: int) -> list[MemberInfo]:
    """Return the members with those first that are now in a group whose members are all there; the others in parts of nodes."""
    now, others = dict[int, list[MemberInfo]](), list[MemberInfo]()
    for member in crew:
        (now.setdefault(group_of(member.global_rank, size), []) if member.global_rank >= 0 else others).append(member)
    whole = [one for number in sorted(now) if len(now[number]) == size for one in _as_it_is(now[number])]
    broken = [one for group in now.values() if len(group) < size for one in group]
    return whole + _in_parts_of_nodes(broken + others, size)


def _as_it_is(group: Sequence[MemberInfo]) -> Sequence[MemberInfo]:
    """Return a group in the order of its ranks, unless fewer neighbours of these share a node than could."""
    now = sorted(group, key=lambda one: one.global_rank)
    parts = _in_parts_of_nodes(now, len(now))
    return now if ranks_at_home([now]) >= ranks_at_home([parts]) else parts


def _in_parts_of_nodes(crew: Sequence[MemberInfo], size: int) -> list[MemberInfo]:
    """Return the members with as many of a node behind each other as it has, in parts of powers of two, the largest first."""
    ordered, left = list[MemberInfo](), by_node(crew)
    while size:
        for node in left:
            whole = len(node) - len(node) % size
            ordered += node[:whole]
            del node[:whole]
        size //= 2
    return ordered


def _node_and_domain(member: MemberInfo) -> tuple[str, str]:
    return node_of(member), member.failure_domain


def _apart(members: Iterable[MemberInfo], place_of: Callable[[MemberInfo], Hashable]) -> list[list[MemberInfo]]:
    """Return the members of each place, in the order of the places' first members."""
    found: dict[Hashable, list[MemberInfo]] = {}
    for member in members:
        found.setdefault(place_of(member), []).append(member)
    return list(found.values())
