"""How the process that forks programs is asked for one. As a program, `python -S link.py SOCKET ARGUMENTS` stands for
`python -m gpubench ARGUMENTS`, for tests of shell scripts."""

import json
import os
import signal
import socket
import sys

NUMBER_BYTES = 8


class Link:
    """One program: it is asked for, then come its number and, later, its status."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)

    def ask(self, arguments, cwd, env, streams):
        """The number of the forked process; 0: the program has to be started."""
        request = json.dumps([list(arguments), cwd, dict(env)]).encode()
        socket.send_fds(self._socket, [request], list(streams))
        return self.number()

    def fileno(self):
        """What can be read once the program has ended."""
        return self._socket.fileno()

    def number(self):
        received = self._socket.recv(NUMBER_BYTES)
        # Nothing comes where the process that forks was ended.
        return int.from_bytes(received, "little") if received else signal.SIGKILL

    def close(self):
        self._socket.close()


def _stand_in(path, arguments):
    link = Link(path)
    if link.ask(arguments, os.getcwd(), os.environ, [0, 1, 2]):
        code = os.waitstatus_to_exitcode(link.number())
        sys.exit(code if code >= 0 else 128 - code)
    os.execv(sys.executable, [sys.executable, "-m", "gpubench", *arguments])


if __name__ == "__main__":
    _stand_in(sys.argv[1], sys.argv[2:])
