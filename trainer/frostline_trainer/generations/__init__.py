"""Generations: a worker joins a run, forms process groups, receives state, trains, recovers from failures, and ends."""
