"""The layouts of tensor parallelism in the literature, as plain code beside the engine's: what each sends, and that bits agree.

The engine shares tiles by columns (`placement.tp_degree`), and its third axis is data parallelism with sharded state. The 2-D and
the 3-D algorithm of the papers are here, for comparison and as a check of the planner's formula of traffic.
"""
