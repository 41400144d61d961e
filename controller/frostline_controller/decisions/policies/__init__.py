"""Freeze policies: one file each, each a pure function from what was measured to a proposed freeze point."""
