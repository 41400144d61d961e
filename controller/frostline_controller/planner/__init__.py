"""The planner: chooses the placement of the work and predicts the cost of a step (docs/design.md 7).

Its modules are pure, without clock, I/O and torch, but for `choice`, which calls the planner for the controller, and `profiles`,
which keeps the measurements of workers.
"""
