"""Freeze decisions: from layer statistics to a freeze point.

Policies propose a freeze point, rails limit it, the guard rolls harmful freezes back. `taker` writes and announces decisions.
"""
