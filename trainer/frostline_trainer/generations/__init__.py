"""Generations: how a worker joins, forms groups, takes over state, trains, recovers from a failure, and ends."""
