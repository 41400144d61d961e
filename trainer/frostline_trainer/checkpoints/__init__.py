"""Checkpoints on disk: writing, finding, retention and reading (docs/protocols.md 8)."""
