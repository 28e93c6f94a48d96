"""Compares the kernel with ipykernel, and a cell with the raw execute_code call, in one run.

    cargo build --release
    python benches/compare.py target/release/colab-kernel        (needs jupyter_client, ipykernel, psutil)

Machines are noisy, so every figure comes with its ratio; the kernels take turns.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

import psutil
from jupyter_client.manager import KernelManager


def start(name, env):
    manager = KernelManager(kernel_name=name)
    if name == "colab":
        manager.kernel_spec_manager.kernel_dirs = [os.path.join(env["JUPYTER_PATH"], "kernels")]
    manager.start_kernel(env=env)
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    return manager, client


def stop(manager, client):
    client.stop_channels()
    began = time.perf_counter()
    manager.shutdown_kernel()
    return time.perf_counter() - began


def start_to_kernel_info(name, env):
    """Seconds from the start of the process to its kernel_info_reply, asked as soon as the port is open: a ZeroMQ socket that
    is refused tries again after 100 ms only."""
    manager = KernelManager(kernel_name=name)
    if name == "colab":
        manager.kernel_spec_manager.kernel_dirs = [os.path.join(env["JUPYTER_PATH"], "kernels")]
    manager.pre_start_kernel()
    manager.write_connection_file()
    began = time.perf_counter()
    manager.start_kernel(env=env)
    while True:
        try:
            socket.create_connection((manager.ip, manager.shell_port)).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.0005)
    client = manager.client()
    client.start_channels(iopub=False, stdin=False, hb=False, control=False)
    client.kernel_info()
    client.get_shell_msg(timeout=60)
    elapsed = time.perf_counter() - began
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    return elapsed


def cell(client, code, timeout=600):
    """Runs a cell; the seconds to its idle, the bytes and the stream messages that came before it."""
    began = time.perf_counter()
    msg_id = client.execute(code)
    size = count = 0
    first = None
    while True:
        message = client.get_iopub_msg(timeout=timeout)
        if message["parent_header"].get("msg_id") != msg_id:
            continue
        if message["msg_type"] == "stream":
            first = first or time.perf_counter() - began
            size += len(message["content"]["text"])
            count += 1
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    while client.get_shell_msg(timeout=timeout)["parent_header"].get("msg_id") != msg_id:
        pass
    return time.perf_counter() - began, size, count, first


def raw_call(endpoint, token, session, code):
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "execute_code",
            "arguments": {"session": session, "executionId": str(uuid.uuid4()), "code": code},
            "_meta": {"progressToken": str(uuid.uuid4())},
        },
    }
    headers = {
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    began = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(endpoint, json.dumps(body).encode(), headers)) as response:
        response.read()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", type=int, default=200)
    options = parser.parse_args()
    binary = str(Path(options.binary).resolve())
    directory = Path(tempfile.mkdtemp())
    subprocess.run([binary, "install", "--prefix", str(directory)], check=True, stdout=subprocess.DEVNULL)
    emulator = subprocess.Popen([binary, "emulate", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        endpoint = next(line.strip().split("=", 1)[1] for line in emulator.stdout if "COLAB_KERNEL_ENDPOINT=" in line)
        env = dict(
            os.environ,
            JUPYTER_PATH=str(directory / "share" / "jupyter"),
            COLAB_KERNEL_ENDPOINT=endpoint,
            COLAB_KERNEL_TOKEN="bench",
            COLAB_KERNEL_STATE_DIR=str(directory / "state"),
        )
        compare(options, env, endpoint)
    finally:
        emulator.terminate()
        emulator.wait()


def compare(options, env, endpoint):
    starts = {"colab": [], "python3": []}
    for _ in range(options.rounds):
        for name, times in starts.items():
            times.append(start_to_kernel_info(name, env))
    ours, theirs = (statistics.median(starts[name]) for name in ("colab", "python3"))
    print(f"start to kernel_info   {ours * 1e3:8.1f} ms   ipykernel {theirs * 1e3:8.1f} ms   ratio {theirs / ours:.1f}")

    # The kernel with its companion, the kernel as text only, ipykernel.
    kernels = {name: start(name, env) for name in ("colab", "python3")}
    text = start("colab", env | {"COLAB_KERNEL_COMPANION": "off"})
    cell(text[1], "pass")
    idle = psutil.Process(kernels["colab"][0].provisioner.process.pid).memory_info().rss
    print(f"memory, idle           {idle / 2**20:8.1f} MiB")
    for _, client in kernels.values():
        cell(client, "pass")

    raw_session = None
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_runtimes", "arguments": {}}}
    headers = {
        "authorization": "Bearer bench",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    with urllib.request.urlopen(urllib.request.Request(endpoint, json.dumps(request).encode(), headers)) as response:
        listed = response.read().decode()
    at = listed.index('"runtimes/')
    raw_session = listed[at + 1 : listed.index('"', at + 1)] + "/sessions/raw"
    raw_call(endpoint, "bench", raw_session, "pass")

    times = {"cell": [], "text": [], "raw": [], "ipykernel": []}
    for _ in range(options.cells):
        times["cell"].append(cell(kernels["colab"][1], "pass")[0])
        times["text"].append(cell(text[1], "pass")[0])
        times["raw"].append(raw_call(endpoint, "bench", raw_session, "pass"))
        times["ipykernel"].append(cell(kernels["python3"][1], "pass")[0])
    medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    print(
        f"pass cell              {medians['cell']:8.2f} ms   as text {medians['text']:.2f} ms   raw call {medians['raw']:.2f} ms   "
        f"as text minus raw {medians['text'] - medians['raw']:.2f} ms   ipykernel {medians['ipykernel']:.2f} ms"
    )

    code = "for _ in range(200_000): print('x' * 99)"
    for name, (_, client) in {**kernels, "text": text}.items():
        elapsed, size, count, first = cell(client, code)
        print(
            f"20 MB print, {name:8}  {size / elapsed / 1e6:8.1f} MB/s in {count} messages, first after {first * 1e3:.0f} ms"
        )
    stop(*text)
    for name, (manager, client) in kernels.items():
        print(f"shutdown, {name:8}     {stop(manager, client) * 1e3:8.0f} ms")

    began = time.perf_counter()
    many = []
    for _ in range(50):
        manager = KernelManager(kernel_name="colab")
        manager.kernel_spec_manager.kernel_dirs = [os.path.join(env["JUPYTER_PATH"], "kernels")]
        manager.start_kernel(env=env)
        client = manager.client()
        client.start_channels(iopub=False, stdin=False, hb=False, control=False)
        client.kernel_info()
        many.append((manager, client))
    for _, client in many:
        client.get_shell_msg(timeout=60)
    elapsed = time.perf_counter() - began
    memory = sum(psutil.Process(manager.provisioner.process.pid).memory_info().rss for manager, _ in many)
    print(f"50 kernels at once     {elapsed:8.2f} s to answer (their start by this script included), {memory / 2**20:.0f} MiB")
    for manager, client in many:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    sys.exit(main())
