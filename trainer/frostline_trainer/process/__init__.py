"""The worker's process: what surrounds training in it."""
