"""One training step: programs over stages, gradients summed in one tree, the vote, the commit.

What a worker does in a step follows from the plan and the worker's id alone.
"""
