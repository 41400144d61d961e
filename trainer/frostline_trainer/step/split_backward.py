"""A split backward: the gradient of a stage's input now, the gradients of its weights later, in the pipeline's idle time.

The autograd graph is walked once from the root to the input. Each operation on this path that has weights keeps the gradient that
passed it; later its weight gradients are computed from that gradient. These are the same kernels on the same numbers as in one
backward, so the bits are the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


@dataclass
class _Joint:
    """An operation on the path to the input, and the weights among its operands, directly or through a cast or a view.

    gradients: of the operation's outputs, once the path has been walked; None for an output without gradient.
    """

    node: Node
    weights: list[nn.Parameter]
    gradients: Sequence[torch.Tensor | None] = ()

    def keep(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Hook of the operation: keep the gradients that reach it in the backward."""
        self.gradients = gradients

    def add_to_weights(self) -> None:
        found = [(output, gradient) for output, gradient in enumerate(self.gradients) if gradient is not None]
        if found:
            edges = [GradientEdge(self.node, output) for output, _ in found]
            torch.autograd.backward(edges, [gradient for _, gradient in found], inputs=self.weights)


class SplitBackward:
    """A micro-batch's (or cell's) backward through a stage. Construction computes the entry's gradient; `close` does the rest.

    With recomputation, and if a weight is used twice, `close` walks the whole path a second time.

    Args:
        root: Where the backward begins.
        gradient: Of the root; None for a loss.
        entry: The leaf tensor whose gradient is wanted.
        weights: Those that learn.
        recomputes: The backward recomputes the forward (activation checkpointing), once for each walk.
    """

    def __init__(
        self, root: torch.Tensor, gradient: torch.Tensor | None, entry: torch.Tensor, weights: Sequence[nn.Parameter],
        recomputes: bool = False,
    ) -> None:  # fmt: skip
        self._root, self._gradient, self._weights = root, gradient, weights
        self._joints = None if recomputes else _joints(root, entry, weights)
        hooks = [joint.node.register_prehook(joint.keep) for joint in self._joints or ()]
        (entry.grad,) = torch.autograd.grad(root, entry, gradient, retain_graph=True)
        for hook in hooks:
            hook.remove()

    def close(self) -> None:
        """Add the weights' gradients to their `.grad`s."""
        if self._joints is not None:
            for joint in self._joints:
                joint.add_to_weights()
        elif self._weights:
            torch.autograd.backward(self._root, self._gradient, inputs=list(self._weights))


def _joints(root: torch.Tensor, entry: torch.Tensor, weights: Sequence[nn.Parameter]) -> list[_Joint] | None:
    """The operations on the path from root to entry that use weights; None if two use the same weight: its sum has an order."""
    of_node = {get_gradient_edge(weight).node: weight for weight in weights}
    way = _way(get_gradient_edge(root).node, get_gradient_edge(entry).node)
    joints, seen = [], set[Node]()
    for node in way:
        beside = _reached((below for below, _ in node.next_functions if below is not None and below not in way), way)
        if seen & beside:
            return None
        seen |= beside
        found = [of_node[one] for one in beside if one in of_node]
        if found:
            joints.append(_Joint(node, found))
    return joints


def _way(start: Node, goal: Node) -> dict[Node, None]:
    """All operations on paths from start to goal, goal included, in the order of a walk from the start."""
    above: dict[Node, list[Node]] = {start: []}
    left = [start]
    while left:
        node = left.pop()
        for below, _ in node.next_functions:
            if below is None:
                continue
            if below not in above:
                above[below] = []
                left.append(below)
            above[below].append(node)
    on_way = {goal}
    left = [goal] if goal in above else []
    while left:
        for node in above[left.pop()]:
            if node not in on_way:
                on_way.add(node)
                left.append(node)
    return {node: None for node in above if node in on_way}


def _reached(starts: Iterable[Node], way: dict[Node, None]) -> set[Node]:
    """All operations that the starts depend on; the starts are not on the path `way`."""
    found = set[Node]()
    left = list(starts)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += [below for below, _ in node.next_functions if below is not None]
    return found
