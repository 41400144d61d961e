"""The cluster as the controller sees it: `backend` says what is asked of one, `local` and `kubernetes` answer."""
