"""Backward passes run in the thread that asks for them, on every device."""

import torch


def backward_in_own_thread() -> None:
    """Let the calling thread run its backward passes itself, from now on.

    torch otherwise has one thread for each GPU, which runs the backward passes of all threads one after the other. Waits for
    other members inside a backward would then be counted as that thread's (`transport.waiting`), so that a member that waits for
    a hung one would look hung itself; and where several threads of a process wait for each other inside their backward passes
    (`tensor.apart`), none could end. On a CPU torch does so anyway.
    """
    torch.autograd.set_multithreading_enabled(False)
