"""Today's tree against another revision: the same measurements in both, by turns."""
