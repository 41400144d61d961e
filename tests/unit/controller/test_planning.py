"""From workers' measurements to the planner's inputs."""

from frostline_contract.statistics import UnitProfile, WorkerProfile
from frostline_controller.members.membership import Worker
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_controller.planner.measurements import reference_profile


def worker(name: str, *seconds: float) -> Worker:
    units = tuple(
        UnitProfile(
            forward_seconds=one,
            backward_seconds=2 * one,
            parameter_bytes=1,
            optimizer_bytes=2,
            activation_bytes=3,
            output_bytes=4,
        )
        for one in seconds
    )
    profile = KeptProfile.of(WorkerProfile(micro_batch_size=4, units=units))
    return Worker(f"{name}/1", name, name, 1, "127.0.0.1", 1, profile, registered_at=0.0, last_received=0.0)


def test_workers_of_several_machines_are_judged_by_the_median_one() -> None:
    workers = (worker("a", 0.9, 0.9), worker("b", 0.1, 0.3), worker("c", 0.2, 0.4))
    assert reference_profile(workers, one_machine=False) == workers[2].profile.record()
    assert reference_profile(workers[1:], one_machine=False) == workers[1].profile.record()


def test_on_one_machine_noise_only_adds() -> None:
    workers = (worker("a", 0.1, 0.9), worker("b", 0.8, 0.2))
    chosen = reference_profile(workers, one_machine=True)
    assert [(unit.forward_seconds, unit.backward_seconds) for unit in chosen.units] == [(0.1, 0.2), (0.2, 0.4)]
    assert chosen.units[0].parameter_bytes == 1
    assert reference_profile(workers[:1], one_machine=True) == workers[0].profile.record()
