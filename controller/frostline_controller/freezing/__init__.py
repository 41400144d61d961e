"""Freezing: policies propose, rails limit, the guard takes back; `decide.decide` is what the controller calls."""
