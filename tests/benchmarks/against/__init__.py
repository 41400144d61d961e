"""The present tree against another revision: the same measurements in both, in turns."""
