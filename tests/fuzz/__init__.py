"""Mutated input for all readers of data from others: only declared errors, no hang, no unbounded memory."""
