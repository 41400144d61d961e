"""An exhaustive search of the commit, reshape and recovery protocol, which calls production's own functions for each decision.

    python -m tests.model [--config NAME] [--without RULE] [--list]

The search visits every state that a small run can reach: three or four workers, crashes, a partition that heals, torn updates,
plans received late or never, a planned switch, another controller. The decisions are not modelled: the answer to a failure
(frostline_controller.recovery.answer), the plans (frostline_controller.planner.plans, frostline_contract.plan) and the acceptance
of announcements by a worker (frostline_trainer.generations.plan_table) are called as they are. docs/adr/0007 says what is shown,
and what is not.
"""
