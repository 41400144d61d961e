"""The step: programs over stages, gradients summed in one tree, the vote, the commit. A function of the plan and the
worker's id."""
