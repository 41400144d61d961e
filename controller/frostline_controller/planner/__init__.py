"""Planning: who computes what, and what a step will cost (docs/design.md 7).

Pure, without clock, I/O and torch, but for `choice` and `profiles`, which ask it and keep what workers measured.
"""
