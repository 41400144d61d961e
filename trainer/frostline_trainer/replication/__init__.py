"""Second copies and second opinions: buddies that keep units of others, what a worker could bring back, and audits."""
