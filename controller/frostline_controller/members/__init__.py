"""Workers of a run: who enters, who leaves, whose pod is taken away."""
