"""The controller's service: facts arrive by RPC, one reconciler acts on them."""
