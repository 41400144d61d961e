"""What the trainer asks of NCCL's library before it makes a communicator."""

from frostline_trainer.comm import nccl


def test_the_librarys_watchdog_is_quiet_unless_the_user_says_otherwise() -> None:
    environment = {"TORCH_NCCL_ENABLE_MONITORING": "1"}
    nccl.quiet(environment)
    assert environment == {**nccl.ENVIRONMENT, "TORCH_NCCL_ENABLE_MONITORING": "1"}
    assert environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
