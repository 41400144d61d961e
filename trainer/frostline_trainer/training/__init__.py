"""The training loop: steps, votes, commits and intervals on one generation, and the state that a run carries."""
