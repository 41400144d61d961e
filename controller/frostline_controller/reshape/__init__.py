"""The switch to another placement while training goes on: when it may be, and what is known of the prepared plan."""
