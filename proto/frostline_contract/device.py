"""The record of a worker's device, on which plans depend. Immutable, and the same on both sides of the wire."""

from frostline_contract.plan import Frozen


class DeviceFacts(Frozen):
    """A worker's device and the libraries that compute and communicate on it, as it registers them.

    Attributes:
        host: identifies the machine by its kernel's boot, so it is the same in all containers of the machine.
        name: "cpu", or the GPU's model.
        uuid: of the GPU or MIG instance; "" where there is none.
        multiprocessors: their number, 0 without a GPU. cuBLAS promises equal bits only between equal numbers.
        memory_bytes: of the device.
        driver, cuda, cublas, cudnn, nccl: versions, "" where there is none.
    """

    host: str = ""
    name: str = "cpu"
    uuid: str = ""
    multiprocessors: int = 0
    memory_bytes: int = 0
    driver: str = ""
    cuda: str = ""
    cublas: str = ""
    cudnn: str = ""
    nccl: str = ""
