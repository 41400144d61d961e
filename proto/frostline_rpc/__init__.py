"""Server and channel conventions that all services share: authentication, status codes, keepalive, retries, conversion."""
