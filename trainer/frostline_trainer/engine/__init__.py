"""The exact step: what a worker computes in a generation, as a function of the plan and its own id."""
