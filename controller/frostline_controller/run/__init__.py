"""One run as the controller holds it: what is known of it, what is on disk, what is to be sent."""
