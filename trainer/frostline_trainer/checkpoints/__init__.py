"""Checkpoints on disk: how they are written, found, kept and read (PROTOCOLS 8)."""
