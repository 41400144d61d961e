"""The mesh: the named axes along which the members of a generation are arranged, and where each global rank stands on them.

Every formula between a global rank and its place stands in this module, and nowhere else: whoever needs a rank, a neighbour or
the members of a process group asks a Mesh. A shape crosses the wire, and is written to disk, as its degrees by axis name
(`{"dp": 2, "pp": 4}`).

The axes, outermost first. Neighbouring global ranks differ in the innermost axis, so the innermost axes are those whose members
talk most: a launcher that fills a machine with neighbouring ranks keeps their traffic inside it.

dp          Data parallelism: replicas of the whole pipeline, each with its leaves of the batch. Exists to use more workers than
            the model has stages, and because copies of a unit's state in two failure domains survive a failure. Members of a
            dp line sum their gradients once a step, so it is the outermost axis: it can wait for the slowest network.
pp          Pipeline parallelism: the stages of one replica. Exists because one worker cannot hold the model, and because layers
            that are frozen need no worker: it is the axis that shrinks in a run. Members of a pp line send one tensor to a
            neighbour for each micro-batch and stage.
tp_columns  Tensor parallelism, first part: the inner dimension (heads, MLP width, vocabulary) of a stage's matrices is cut.
            Exists where one unit is too big or too slow for one worker. Members of the line sum partial products in every unit.
tp_depth    Tensor parallelism, second part: the hidden dimension is cut too. Exists where a replica spans so many workers that
            the sums along tp_columns alone would leave the machine. Most of what tensor parallelism sends goes along
            tp_depth, so it is innermost.

A joined axis stands for several: "tp" is tp_columns and tp_depth together, the workers that share one stage of one replica.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

AXES = ("dp", "pp", "tp_columns", "tp_depth")
"""The axes that shapes may name, outermost first. A new axis is a word here and a paragraph above."""
ALWAYS_NAMED = ("dp", "pp")
"""Axes that every shape names; the others are left out where their degree is 1."""
JOINED = {"tp": ("tp_columns", "tp_depth")}
"""Axes that are neighbours in a mesh and have a name together."""


@dataclass(frozen=True)
class Mesh:
    """A box of global ranks with named axes: rank 0 has coordinate 0 on each, and the last axis varies fastest.

    Args:
        axes: (name, degree) of each axis, outermost first; names are unique, degrees at least 1.

    Raises:
        ValueError: where an axis has no name, a name comes twice, or a degree is no whole number of at least 1.
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if not names:
            raise ValueError("a mesh has no axis; name at least one, such as ('dp', 1)")
        for name, degree in self.axes:
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"axis {name!r} of a mesh has no usable name; give it a word such as 'pp'")
            if name in JOINED:
                raise ValueError(f"axis {name!r} stands for {' and '.join(JOINED[name])} together; name those")
            if names.count(name) > 1:
                raise ValueError(f"axis {name!r} is named {names.count(name)} times in a mesh; name it once")
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise ValueError(f"{name}_degree is {degree}; it must be at least 1")

    @classmethod
    def of(cls, degrees: Mapping[str, int]) -> "Mesh":
        """The mesh of a shape: its degrees by axis name, in the order of AXES.

        Raises:
            ValueError: for a name that is none of AXES, or a degree below 1.
        """
        return cls(tuple(check_degrees(degrees).items()))

    @cached_property
    def size(self) -> int:
        """Number of global ranks."""
        return math.prod(degree for _, degree in self.axes)

    @property
    def degrees(self) -> dict[str, int]:
        """The degree of each axis by its name, outermost first."""
        return dict(self.axes)

    def degree(self, axis: str) -> int:
        """The number of ranks on a line along `axis`; 1 for an axis of AXES that this mesh does not have."""
        return math.prod(degree for _, degree, _ in self._parts(axis))

    def coordinate(self, global_rank: int) -> dict[str, int]:
        """Where a global rank stands: its index on every axis, by name."""
        self._check_rank(global_rank)
        return {name: global_rank // stride % degree for name, degree, stride in self._strided}

    def coordinate_on(self, axis: str, global_rank: int) -> int:
        """The index of a global rank on one axis; on a joined axis the index within the joined line."""
        self._check_rank(global_rank)
        index = 0
        for _, degree, stride in self._parts(axis):
            index = index * degree + global_rank // stride % degree
        return index

    def global_rank(self, **at: int) -> int:
        """The global rank at a coordinate. Every axis of the mesh is named; those of degree 1 may be left out.

        Raises:
            ValueError: for an axis that is missing or that the mesh does not have, or an index outside its degree.
        """
        ranks = self.ranks_at(**at)
        if len(ranks) > 1:
            missing = [name for name, degree in self.axes if degree > 1 and name not in at]
            raise ValueError(f"a rank's coordinate lacks {', '.join(missing)}; name each axis of {self.degrees}")
        return ranks[0]

    def ranks_at(self, **at: int) -> tuple[int, ...]:
        """All global ranks that have the indices given, ascending; whatever their indices on axes that are not named are.

        Raises:
            ValueError: for an axis that the mesh does not have, or an index outside its degree.
        """
        degrees = self.degrees
        for name, index in at.items():
            if name not in degrees:
                raise ValueError(f"axis {name!r} is none of this mesh's: {', '.join(degrees)}")
            if not 0 <= index < degrees[name]:
                raise ValueError(f"{name}_rank is {index}; with {name}_degree {degrees[name]} it is 0 to {degrees[name] - 1}")
        offsets = [[index * stride for index in ((at[name],) if name in at else range(degree))]
                   for name, degree, stride in self._strided]  # fmt: skip
        return tuple(map(sum, product(*offsets)))

    def line(self, global_rank: int, axis: str) -> tuple[int, ...]:
        """The global ranks that differ from `global_rank` on `axis` alone, itself included, by their index on it."""
        own = {name for name, _, _ in self._parts(axis)}
        return self.ranks_at(**{name: index for name, index in self.coordinate(global_rank).items() if name not in own})

    def lines(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Every line along `axis`, by its first rank: together each global rank once."""
        firsts = self.ranks_at(**{name: 0 for name, _, _ in self._parts(axis)})
        return tuple(self.line(first, axis) for first in firsts)

    @cached_property
    def _strided(self) -> tuple[tuple[str, int, int], ...]:
        """(name, degree, stride) of each axis, outermost first: by the stride the global rank rises with the axis' index."""
        strided, stride = [], 1
        for name, degree in reversed(self.axes):
            strided.append((name, degree, stride))
            stride *= degree
        return tuple(reversed(strided))

    def _parts(self, axis: str) -> list[tuple[str, int, int]]:
        """The mesh's own axes that `axis` stands for, as in `_strided`."""
        names = JOINED.get(axis, (axis,))
        parts = [strided for strided in self._strided if strided[0] in names]
        if not parts and axis not in AXES and axis not in JOINED:
            raise ValueError(f"axis {axis!r} is none of this mesh's: {', '.join(self.degrees)}")
        return parts

    def _check_rank(self, global_rank: int) -> None:
        if not 0 <= global_rank < self.size:
            raise ValueError(f"global_rank is {global_rank}; a mesh of {self.degrees} has ranks 0 to {self.size - 1}")


def check_degrees(degrees: Mapping[str, int]) -> dict[str, int]:
    """The degrees of a shape, checked and in one form: in the order of AXES, dp and pp always there, others where above 1.

    Raises:
        ValueError: for a name that is none of AXES, or a degree that is no whole number of at least 1.
    """
    unknown = [name for name in degrees if name not in AXES]
    if unknown:
        raise ValueError(f"degrees name {', '.join(map(repr, unknown))}; the axes of a shape are {', '.join(AXES)}")
    complete = Mesh(tuple((name, degrees.get(name, 1)) for name in AXES)).degrees
    return {name: degree for name, degree in complete.items() if degree > 1 or name in ALWAYS_NAMED}


def in_words(degrees: Mapping[str, int], times: str = "x") -> str:
    """A shape for people, innermost axis first: "pp 4 x dp 2"; "" for no degrees (no shape yet). Between them is `times`."""
    return f" {times} ".join(f"{name} {degrees[name]}" for name in reversed(AXES) if name in degrees)


def with_degrees(values: Any) -> Any:
    """The fields of a record with its shape as `degrees`; older versions wrote `pp_degree` and `dp_degree`.

    Args:
        values: a record's fields by name, as they were read. Anything but a mapping is returned unchanged, for the record's own
            check.

    Returns:
        The same fields with `degrees`, and without the older names. Where both are there, `degrees` counts.
    """
    if not isinstance(values, Mapping):
        return values
    older = {axis: f"{axis}_degree" for axis in ALWAYS_NAMED if f"{axis}_degree" in values}
    if not older:
        return values
    kept = {name: value for name, value in values.items() if name not in older.values()}
    given = {axis: values[name] for axis, name in older.items()}
    return {**kept, "degrees": kept.get("degrees") or (given if any(given.values()) else {})}
