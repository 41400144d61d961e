"""A worker's life around its loop: entering and preparing plans, recovering, saving, leaving, finishing."""
