"""A whole run on a described cluster, on paper: the production planner and policies decide, nothing is trained."""
