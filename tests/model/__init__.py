"""An exhaustive search of the commit, reshape and recovery protocol that asks production's own functions what to do.

    python -m tests.model [--config NAME] [--without RULE] [--list]

The search visits every state that a small run can come to: three or four workers, crashes, a partition that heals, torn updates,
plans heard late or never, a planned switch, another controller. What decides is not modelled: the answer to a failure
(frostline_controller.recovery.answer), the plans (frostline_controller.planner.plans, frostline_contract.plan) and what a worker
accepts (frostline_trainer.generations.plan_table) are called as they are. docs/adr/0007 says what is shown, and what is not.
"""
