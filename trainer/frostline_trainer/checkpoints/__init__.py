"""Checkpoints on disk: how they are written, found, kept and read (docs/protocols.md 8)."""
