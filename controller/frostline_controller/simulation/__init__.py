"""The simulation of a whole run on a described cluster: the production planner and policies decide, nothing is trained."""
