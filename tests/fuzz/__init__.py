"""Mutated input for everything that reads what others have written: only declared errors, no hang, no unbounded memory."""
