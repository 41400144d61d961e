"""traces.jsonl: each traced step and rank once, even if it is sent again, to the same or another controller."""

import asyncio
from pathlib import Path

from frostline_contract.jsonl import read_jsonl
from frostline_contract.statistics import OperationTime, StepTrace
from frostline_controller.run.trace_log import TraceLog


def trace(step: int, pp_rank: int) -> StepTrace:
    one = OperationTime(kind="forward", stage=pp_rank, micro_batch=0, slice=0, start=0.5, end=1.0)
    return StepTrace(lineage=0, step=step, generation="1.1", freeze_point=0, pp_rank=pp_rank, operations=(one,))


def test_a_trace_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    first, second = [trace(4, 0), trace(4, 1)], [trace(4, 1), trace(8, 0), trace(8, 0)]

    async def take(log: TraceLog, *sent: list[StepTrace]) -> None:
        for traces in sent:
            await log.take(traces)
        log.close()

    asyncio.run(take(TraceLog(path), first, first, []))
    asyncio.run(take(TraceLog(path), second))
    written = [StepTrace.model_validate(line) for line in read_jsonl(path)]
    assert written == [trace(4, 0), trace(4, 1), trace(8, 0)]
