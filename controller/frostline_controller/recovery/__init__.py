"""Recovery after a failure (PROTOCOLS 4): from what survivors hold to one plan. Pure; the model check drives these functions."""
