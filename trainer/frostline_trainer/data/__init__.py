"""Data sets: reading records, splitting them, and choosing the samples of a step."""
