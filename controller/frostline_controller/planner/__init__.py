"""The planner: chooses the placement of the work and predicts the cost of a step (docs/design.md 7).

Its modules are pure, without clock, I/O and torch, but for `choice`, which calls the planner for the controller, and `profiles`,
which keeps the measurements of workers. A map, in the order in which a plan is made:

Inputs: `inputs`; of a run `adapter`, `measurements`, `kept_profile`, `profiles`, `profile_file`, `quota`; without a cluster
    `assumed`, `analytic`, `adapted`, `model_size`.
Shapes and search: `asked`, `search`, `shapes`, `candidates`, `cuts`, `leaves`, `placing`, `assignment`, `refusal`; other
    objectives and rules `cheapest`, `pipetransformer_plan`, `pipetransformer_rule`.
Parts beside pipeline and replicas: `shared_as_needed`, `in_groups`, and the package `tensor`.
Costs: `cost`, `cache_costs`, `cell_costs`, `split_costs`, `gathers`, `group_messages`.
Simulated steps: `timed_step`, `simulated_step`, `best_simulated`, `climbing`, `token_slices`, `tried_slices`, `without_bubbles`.
Choices of a plan: `backend`, `caching`, `frozen_units`, `tiles`, `verdict`.
The plan: `choice`, `draft`, `plans`.
Advice and words: `numerics`, `advice`, `cell_advice`, `by_schedule`, `forecast`, `describe`, `in_words`, `program_picture`.
"""
