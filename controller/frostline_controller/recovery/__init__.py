"""Recovery after a failure (docs/protocols.md 4): turns the state that survivors hold into one plan.

`answer`, `target`, `may_start` and `budget` are pure; the model check drives them. `driver`, `reports` and `plans` act.
"""
