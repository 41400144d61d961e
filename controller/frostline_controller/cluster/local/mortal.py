"""A launcher of a program that the kernel kills when the parent thread ends: `python -I -S mortal.py PARENT PROGRAM ...`.

It runs as a file of its own with the standard library alone, since it starts each child of a command. PARENT: the process id of
the parent, which may end before the kernel has the request.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Become PROGRAM. Return 1 where PARENT has ended already, 127 where the program cannot be run."""
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
