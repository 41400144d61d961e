"""A worker around its loop: preparing and entering plans, what is done between steps, recovering, saving, leaving, ending."""
