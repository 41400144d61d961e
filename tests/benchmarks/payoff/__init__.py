"""The benchmark `payoff`: time to the same accuracy, elastic against the best static placement (docs/comparison/payoff.md)."""
