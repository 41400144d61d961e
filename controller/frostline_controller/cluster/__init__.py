"""The interface between the controller and its cluster (`backend`), with implementations in `local` and `kubernetes`."""
