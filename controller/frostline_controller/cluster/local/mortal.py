"""Becomes a program that the kernel kills when the thread that started it ends: `python -I -S mortal.py PARENT PROGRAM ...`.

Run as a file of its own, with the standard library alone: it stands between a command and each of its children. PARENT: the
process id of who starts it, whose end may come before the kernel has been asked.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Become PROGRAM. Returns 1 where PARENT has ended already, 127 where the program cannot be run."""
    parent, program, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        return 1
    try:
        os.execvp(program, [program, *arguments])
    except OSError as error:
        print(f"{program} cannot be run: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
