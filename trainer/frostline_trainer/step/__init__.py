"""One training step: programs over stages, gradients summed in one tree, the vote, the commit.

What a worker does in a step follows from the plan and the worker's id alone. A map, in the order of a step:

The frame: `context`, `run_state`, `generation`, `building`, `loop`, `due`, `evaluation`, `probing`, `one_unit`, `unit_kinds`.
Batches: `feed`, `grid`.
Programs: `programs`, `program_check`, `schedules`.
Stages and their pipelines: `stage`, `pipeline`, `crossing`, `saved_forward`, `split_backward`, `cell_pipeline`, `strand`,
    `gathering`, `gathering_pipeline`, `chunks`, `tied`, `compiling`.
Kernels: `precision`, `alignment`, `backward_thread`.
Gradients: `gradients`, `tree`, `exchange`, `reduction`, `norms`, `in_group`; of shared-out state `share`, `sharing`.
Vote and commit: `vote`, `committing`, `optimizer`.
State: `unit_state`, `parts`, `local_shards`, `tile_state`, `still_tiles`, `weight_places`, `packing`, `digests`.
Devices: `fence`, `device_clock`, `device_trail`, `transfer`, `side_copies`.
Measurements: `phases`, `spending`, `tracing`, `link`, `usage`, `weighing`.
"""
