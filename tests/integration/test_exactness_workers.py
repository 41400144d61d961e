"""The warm workers on which the exactness tests run: failures reach the test, and no process is left behind."""

import os
import time

import pytest

from tests.warm_workers import Call, WarmWorkers, WorkerError


def alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_answer_in_order_and_stay_warm(warm_workers: WarmWorkers) -> None:
    echoes = [Call("tests.integration.test_exactness_workers:echo", {"value": value}) for value in ("first", "second")]
    assert warm_workers.call(echoes) == ["first", "second"]
    ids = [warm_workers.call([Call("os:getpid", {})] * 2) for _ in range(2)]
    assert ids[0] == ids[1] and len(set(ids[0])) == 2 and os.getpid() not in ids[0]


def test_a_failures_text_reaches_the_test_and_the_next_call_works(warm_workers: WarmWorkers) -> None:
    with pytest.raises(WorkerError, match=r"worker 1: (?s:.*)division by zero"):
        warm_workers.call([Call("os:getpid", {}), DIVISION])
    assert len(warm_workers.call([Call("os:getpid", {})] * 2)) == 2


def test_a_worker_that_dies_is_named_and_replaced(warm_workers: WarmWorkers) -> None:
    before = warm_workers.call([Call("os:getpid", {})] * 2)
    with pytest.raises(WorkerError, match="worker 0: died with exit status 7"):
        warm_workers.call([Call("tests.integration.test_exactness_workers:leave", {"status": 7})])
    after = warm_workers.call([Call("os:getpid", {})] * 2)
    assert after[0] != before[0] and after[1] == before[1]


def test_a_worker_that_hangs_is_given_up(warm_workers: WarmWorkers) -> None:
    before = warm_workers.call([Call("os:getpid", {})])[0]
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"workers \[0\] did not answer within 0.5 s"):
        warm_workers.call([Call("tests.integration.test_exactness_workers:sleep_long", {})], seconds=0.5)
    assert time.monotonic() - started < 20.0 and not alive(before)


def test_a_closed_pool_leaves_no_process() -> None:
    pool = WarmWorkers()
    ids = pool.call([Call("os:getpid", {})] * 2)
    assert all(alive(process_id) for process_id in ids)
    pool.close()
    assert not any(alive(process_id) for process_id in ids)


def echo(value: str) -> str:
    return value


def divide() -> float:
    return 1 / len([])


def leave(status: int) -> None:
    os._exit(status)


def sleep_long() -> None:
    time.sleep(600)


DIVISION = Call("tests.integration.test_exactness_workers:divide", {})
