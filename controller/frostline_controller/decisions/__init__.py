"""Decisions: from layer statistics to a freeze point. Policies propose, rails limit, the guard takes back; `taker` writes
and tells."""
