"""Random faults on whole runs, an oracle of their permitted costs, and the comparison with an undisturbed run."""
