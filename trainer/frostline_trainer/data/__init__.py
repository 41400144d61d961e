"""Data sets: what is read, how it is split, and which samples a step takes."""
