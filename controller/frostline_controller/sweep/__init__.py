"""Many runs of one job: what is varied, the runs that follow from it, their running beside each other, and what they tell."""
