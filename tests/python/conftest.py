"""Fixtures: a local Colab and an installed kernelspec, both from the binary that COLAB_KERNEL_BIN names."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager

BINARY = os.environ["COLAB_KERNEL_BIN"]


class Emulator:
    """A `colab-kernel emulate` process."""

    def __init__(self, *quirks):
        arguments = [BINARY, "emulate", "--port", "0"]
        for quirk in quirks:
            arguments += ["--quirk", quirk]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        self.endpoint = None
        for line in self.process.stdout:
            if line.startswith("export COLAB_KERNEL_ENDPOINT="):
                self.endpoint = line.strip().split("=", 1)[1]
            if line.startswith("export COLAB_KERNEL_TOKEN="):
                break
        assert self.endpoint, "the emulator did not start"
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def call(self, token, tool, **arguments):
        """Calls a tool as the reference's sample does."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        request = urllib.request.Request(
            self.endpoint,
            json.dumps(body).encode(),
            {
                "authorization": f"Bearer {token}",
                "content-type": "application/json",
                "accept": "application/json, text/event-stream",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read().decode()
        if not text.lstrip().startswith("{"):
            text = [line[5:] for line in text.splitlines() if line.startswith("data:") and '"result"' in line][-1]
        return json.loads(text)["result"]["structuredContent"]

    def sessions(self, token):
        """The names of all open sessions of an account."""
        names = []
        for runtime in self.call(token, "list_runtimes").get("runtimes", []):
            listed = self.call(token, "list_sessions", parent=runtime["name"])
            names += [session["name"] for session in listed.get("sessions", [])]
        return names

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def emulator():
    emulator = Emulator()
    yield emulator
    emulator.stop()


@pytest.fixture
def emulator_with():
    """Starts emulators with quirks; they are stopped after the test."""
    started = []

    def start(*quirks):
        started.append(Emulator(*quirks))
        return started[-1]

    yield start
    for emulator in started:
        emulator.stop()


@pytest.fixture(scope="session")
def prefix(tmp_path_factory):
    """A prefix in which the kernelspec `colab` is installed."""
    prefix = tmp_path_factory.mktemp("prefix")
    subprocess.run([BINARY, "install", "--prefix", str(prefix)], check=True, timeout=60)
    return prefix


class Front:
    """The environment of one user: a token of its own, a state directory of its own."""

    def __init__(self, emulator, prefix, directory):
        self.emulator = emulator
        self.directory = directory
        self.token = f"token-{uuid.uuid4().hex}"
        self.env = dict(
            os.environ,
            JUPYTER_PATH=str(prefix / "share" / "jupyter"),
            JUPYTER_DATA_DIR=str(directory / "data"),
            JUPYTER_CONFIG_DIR=str(directory / "config"),
            JUPYTER_RUNTIME_DIR=str(directory / "runtime"),
            IPYTHONDIR=str(directory / "ipython"),
            COLAB_KERNEL_ENDPOINT=emulator.endpoint,
            COLAB_KERNEL_TOKEN=self.token,
            COLAB_KERNEL_STATE_DIR=str(directory / "state"),
            COLAB_KERNEL_LOG="debug",
        )

    def jupyter(self, module, *arguments, timeout=300):
        command = [sys.executable, "-m", module, *map(str, arguments)]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout)

    def sessions(self):
        return self.emulator.sessions(self.token)


@pytest.fixture
def front(emulator, prefix, tmp_path):
    return Front(emulator, prefix, tmp_path)


@pytest.fixture
def front_for(prefix, tmp_path):
    """A user of another emulator than the shared one."""
    return lambda emulator: Front(emulator, prefix, tmp_path)


class Kernel:
    """A kernel started the way front-ends start it, with one client."""

    def __init__(self, front):
        self.manager = KernelManager(kernel_name=getattr(front, "kernel", "colab"))
        self.manager.kernel_spec_manager.kernel_dirs = [
            os.path.join(front.env["JUPYTER_PATH"], "kernels")
        ]
        self.manager.start_kernel(env=front.env)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=30)

    def run(self, code, timeout=120):
        """The reply and the messages of a cell, each with the time of its arrival."""
        msg_id = self.client.execute(code)
        return self.collect(msg_id, timeout)

    def collect(self, msg_id, timeout=120):
        messages = []
        deadline = time.monotonic() + timeout
        while True:
            message = self.client.get_iopub_msg(timeout=deadline - time.monotonic())
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            messages.append((time.monotonic(), message))
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        while True:
            reply = self.client.get_shell_msg(timeout=deadline - time.monotonic())
            if reply["parent_header"].get("msg_id") == msg_id:
                return reply, messages

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel()


@pytest.fixture
def kernels():
    """Starts kernels; they are shut down after the test."""
    started = []

    def start(front):
        started.append(Kernel(front))
        return started[-1]

    yield start
    for kernel in started:
        kernel.stop()


def pytest_runtest_makereport(item, call):
    """Leaves the kernels' logs beside a failure."""
    arguments = getattr(item, "funcargs", {})
    of_front = getattr(arguments.get("front"), "directory", None)
    directory = of_front or arguments.get("tmp_path", os.environ.get("COLAB_KERNEL_STATE_DIR"))
    if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
        return
    if "lab" in arguments:
        arguments["lab"].shot(f"failed-{item.originalname}")
    if directory is not None:
        for log in sorted(Path(directory).rglob("kernel-*.log")):
            item.add_report_section(call.when, log.name, log.read_text(errors="replace")[-4000:])
