"""Planning: who computes what, and what a step will cost. Pure: no clock, no I/O, no torch (docs/design.md 7)."""
