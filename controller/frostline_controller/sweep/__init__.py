"""Sweeps: the varied fields of a job, the runs that follow from them, their execution side by side, and their results."""
