"""A run of this machine: its folder and lock, what is checked before it starts, its processes, its progress, and how it ended."""
