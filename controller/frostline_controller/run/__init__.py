"""The run as its controller leads it: facts, durable state, messages to send, and the rounds of the reconciler."""
