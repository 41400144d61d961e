"""Stage bounds for tests and benchmarks that need any cut, not the best one."""


def even_bounds(num_units: int, freeze_point: int, num_stages: int) -> tuple[int, ...]:
    """Return stage bounds that share the trainable units evenly; the frozen prefix is in stage 0.

    There are num_stages + 1 unit indices, the first 0 and the last num_units.
    """
    trainable = num_units - freeze_point
    cuts = [freeze_point + round(i * trainable / num_stages) for i in range(num_stages + 1)]
    return (0, *cuts[1:])
