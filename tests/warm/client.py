"""A command: hands its arguments and streams to the server and ends as the forked process does.

It runs without `site`, in a few milliseconds. A killed client closes its connection, and the server
kills the process.
"""

import json
import os
import signal
import socket
import sys

_KNOWN = ("-c", "-m", "-W")  #: options of Python with which the server can start a program


def main() -> None:
    name, first = sys.argv[2:4]
    if name == "python" and first.startswith("-") and first not in _KNOWN:
        os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    pid_file = os.environ.pop("WARM_PID_FILE", None)
    request = {
        "argv": sys.argv[2:],
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
        "group": os.getpgrp(),
    }
    body = json.dumps(request).encode()
    head = len(body).to_bytes(4, "big")
    socket.send_fds(connection, [head], [0, 1, 2])
    connection.sendall(body)
    pid = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    if pid_file:
        with open(f"{pid_file}.new", "w") as new:
            new.write(str(pid))
        os.rename(f"{pid_file}.new", pid_file)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    answer = connection.recv(4, socket.MSG_WAITALL)
    if len(answer) < 4:
        sys.exit("the server of warm commands has ended")
    code = int.from_bytes(answer, "big", signed=True)
    if code < 0:  # end by the same signal
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
