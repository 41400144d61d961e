"""Collectives over process groups, and what waits on them made to end."""
