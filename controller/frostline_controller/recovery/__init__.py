"""Recovery after a failure (docs/protocols.md 4): from what survivors hold to one plan. Pure; the model check drives these
functions."""
