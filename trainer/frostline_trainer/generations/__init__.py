"""The generations of one worker: which plans it knows, and what has become of each."""
