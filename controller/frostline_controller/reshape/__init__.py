"""Reshapes: the triggers of another placement, and the two phases in which training members switch to it."""
