"""The present tree against another revision: the digests of the example jobs, after a few steps of each."""
