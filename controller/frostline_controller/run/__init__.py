"""The run: what is known of it, what is on disk, what is to be sent, what is done each round and why in this order."""
