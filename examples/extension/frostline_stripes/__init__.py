"""A model family, a data set, a freeze policy and a schedule that Frostline finds by their entry points."""
