"""A worker module for tests of agents and the local cluster; FROSTLINE_SCRIPT selects the behaviour of `main`."""

import os
import signal
import sys
import threading
import time


def main() -> int:
    """FROSTLINE_SCRIPT: "wait" (until SIGTERM, then 0), "stubborn" (ignores SIGTERM), "exit N", "raise", "gloo"."""
    script, stop = os.environ["FROSTLINE_SCRIPT"], threading.Event()
    if script in ("wait", "stubborn"):  # before the line that tests wait for
        signal.signal(signal.SIGTERM, (lambda *_: None) if script == "stubborn" else (lambda *_: stop.set()))
    sys.stdout.write(f"worker pod={os.environ.get('FROSTLINE_POD_NAME')} uid={os.environ.get('FROSTLINE_POD_UID')} "
                     f"device={os.environ.get('CUDA_VISIBLE_DEVICES', '-')} "
                     f"process={os.getpid()} at={time.time():.3f}\n")  # fmt: skip
    sys.stdout.flush()
    if script.startswith("exit"):
        return int(script.split()[1])
    if script == "raise":
        raise RuntimeError("planted")
    if script == "gloo":
        return gloo_and_grpc()
    while not stop.wait(0.02):
        pass
    print("worker drained", flush=True)
    return 0


def gloo_and_grpc() -> int:
    """Open a gRPC channel and a gloo group in a fork whose parent has imported both libraries."""
    import grpc
    import torch
    import torch.distributed as dist

    with grpc.insecure_channel("127.0.0.1:9") as channel:
        try:
            channel.unary_unary("/none/Nothing")(b"", timeout=60)
        except grpc.RpcError as error:
            print(f"grpc answered {error.code().name}", flush=True)
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", 0, 1, True), rank=0, world_size=1)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    print(f"gloo sum {tensor.sum().item()}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
