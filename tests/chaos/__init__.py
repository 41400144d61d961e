"""Random faults on whole runs, an oracle that says what they may cost, and the comparison with a run that nothing befell."""
