"""Planted bugs: each is put into a copy of the sources, and the tests named beside it must fail there."""
