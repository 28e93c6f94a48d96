"""Runs commands and ends them, with all they have started, when standard input closes or one of them ends.

    python launcher.py DIRECTORY COMMAND... [--and COMMAND...]

The emulator holds the other end of standard input. Whatever ends the emulator, SIGKILL included, closes it; then every
descendant of this process is killed and DIRECTORY is removed. Kernels run in sessions of their own and may have forked, so a
process group would not reach them: on Linux this process takes in the orphans among its descendants and finds them by their
parents. Elsewhere orphans escape to process 1, where ipykernel's own watch on its parent ends a kernel.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except Exception:
        pass  # not Linux


def parents():
    """The parent of every process, by process id."""
    found = {}
    if os.path.isdir("/proc/self"):
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    # The command in parentheses may hold anything; the state and the parent follow its last parenthesis.
                    state, parent = stat.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                found[int(name)] = int(parent)
    elif os.name == "posix":
        listing = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True).stdout
        for line in listing.splitlines():
            pid, parent = line.split()
            found[int(pid)] = int(parent)
    return found


def descendants():
    found, family = parents(), {os.getpid()}
    while True:
        more = {pid for pid, parent in found.items() if parent in family} - family
        if not more:
            return family - {os.getpid()}
        family |= more


def end(servers, directory):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = descendants()
        if not left and all(server.poll() is not None for server in servers):
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not left:
            for server in servers:
                server.kill()
        time.sleep(0.01)
    # What a killed process wrote last may still appear while the tree is being removed.
    for _ in range(5):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            break
        time.sleep(0.05)
    try:
        # The last runtime of an emulator that was killed removes its directory too.
        os.rmdir(os.path.dirname(directory))
    except OSError:
        pass
    os._exit(0)


def main():
    directory, commands = sys.argv[1], [[]]
    for argument in sys.argv[2:]:
        if argument == "--and":
            commands.append([])
        else:
            commands[-1].append(argument)
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    adopt_orphans()
    restore = None
    if os.name == "posix":
        # Ignored signals stay ignored in children; a kernel must be able to take an interrupt.
        def restore():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)

    servers = [subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=restore) for command in commands]
    over = threading.Event()

    def watch_input():
        while os.read(0, 4096):
            pass
        over.set()

    def watch_child(server):
        server.wait()
        over.set()

    def watch_children():
        if os.name != "posix":
            for server in servers:
                threading.Thread(target=watch_child, args=(server,), daemon=True).start()
            return
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            for server in servers:
                if pid == server.pid:
                    server.returncode = status
                    over.set()
        over.set()

    threading.Thread(target=watch_input, daemon=True).start()
    threading.Thread(target=watch_children, daemon=True).start()
    over.wait()
    end(servers, directory)


main()
