"""Unit costs from arithmetic alone: a transformer on a device of a given speed, for use where nothing was measured."""

from frostline_contract.statistics import UnitProfile


def analytic_profiles(
    num_blocks: int,
    hidden: int,
    sequence: int,
    micro_batch: int,
    flops_per_second: float,
    vocabulary: int,
    head_positions: int | None = None,
    embedding_parameters: int | None = None,
    bytes_per_value: int = 4,
    bytes_per_weight: int | None = None,
    moments: int = 2,
    fixed_seconds: float = 0.0,
    halves: bool = False,
) -> tuple[UnitProfile, ...]:
    """Return the unit costs of a transformer from its FLOPs: embedding, blocks, head (num_blocks + 2 units).

    A block's forward is 24 h^2 + 4 s h FLOPs a token (matrices, and the two attention products), the head's 2 h V a scored
    position; a backward is twice its forward. A block keeps about 17 h values a token for its backward (arXiv 2205.05198, section
    4, without the attention matrix, which fused kernels do not keep).

    Args:
        num_blocks: transformer blocks.
        hidden: h, the hidden size.
        sequence: s, tokens of a sample.
        micro_batch: samples of a micro-batch.
        flops_per_second: the throughput that a worker achieves, not its peak.
        vocabulary: V, or the number of classes.
        head_positions: positions of a sample that the head scores (1 for a classifier); None: all.
        embedding_parameters: None: (vocabulary + sequence) * hidden.
        bytes_per_value: of activations, and of weights without bytes_per_weight.
        bytes_per_weight: None: bytes_per_value.
        moments: values of optimizer state a parameter.
        fixed_seconds: overhead of each unit's call.
        halves: a block is two units, attention and MLP, as the paper cuts it.
    """
    tokens = micro_batch * sequence
    scored = micro_batch * (sequence if head_positions is None else head_positions)
    crossing = tokens * hidden * bytes_per_value

    def unit(flops: float, parameters: int, kept_values: float) -> UnitProfile:
        forward = flops / flops_per_second
        weights = parameters * (bytes_per_weight or bytes_per_value)
        return UnitProfile(
            forward_seconds=forward + fixed_seconds,
            backward_seconds=2 * forward + fixed_seconds,
            parameter_bytes=weights,
            optimizer_bytes=moments * weights,
            activation_bytes=round(kept_values * bytes_per_value),
            output_bytes=crossing,
        )

    embedding = (vocabulary + sequence) * hidden if embedding_parameters is None else embedding_parameters
    if halves:
        attention = unit(tokens * (8 * hidden**2 + 4 * sequence * hidden), 4 * hidden**2 + 6 * hidden, 7 * tokens * hidden)
        blocks = [attention, unit(tokens * 16 * hidden**2, 8 * hidden**2 + 7 * hidden, 10 * tokens * hidden)] * num_blocks
    else:
        whole = unit(tokens * (24 * hidden**2 + 4 * sequence * hidden), 12 * hidden**2 + 13 * hidden, 17 * tokens * hidden)
        blocks = [whole] * num_blocks
    head = unit(scored * 2 * hidden * vocabulary, hidden * vocabulary + vocabulary + 2 * hidden, scored * (hidden + vocabulary))
    return (unit(tokens * hidden, embedding, tokens * hidden), *blocks, head)
