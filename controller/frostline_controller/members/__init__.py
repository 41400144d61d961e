"""The members of a run: admission, departures, hangs, stragglers, and failed devices."""
