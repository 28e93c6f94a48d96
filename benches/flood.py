"""Text from a service that sends as fast as it can: how much of it a subscriber gets in a second, and what it costs in memory.

    cargo build --release
    python benches/flood.py target/release/colab-kernel [--megabytes N] [--stalled]        (needs jupyter_client, psutil)

The service is a bare HTTP server in a process of its own that answers just the calls of one cell. With --stalled a second
subscriber connects and reads nothing.
"""

import argparse
import http.server
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import zmq
from jupyter_client.manager import KernelManager

TOOLS = [
    {"name": name, "inputSchema": {"type": "object", "properties": {key: {"type": "string"} for key in keys}}}
    for name, keys in {
        "list_runtimes": [],
        "list_runtime_specs": [],
        "list_sessions": ["parent"],
        "create_session": ["parent", "sessionId"],
        "delete_session": ["name"],
        "execute_code": ["session", "executionId", "code"],
    }.items()
]
RUNTIME = {
    "name": "runtimes/r",
    "runtimeSpec": {"variant": "VARIANT_CPU", "accelerator": "NONE", "shape": "SHAPE_STANDARD"},
}
LINE = "x" * 99 + "\n"
CHUNK = LINE * 640


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    megabytes = 0

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, params = request["method"], request.get("params", {})
        if method == "tools/list":
            return self.answer(request, {"tools": TOOLS})
        if method != "tools/call":
            return self.answer(request, {})
        tool, arguments = params["name"], params["arguments"]
        if tool == "execute_code" and "flood" in arguments["code"]:
            return self.flood(request, params["_meta"]["progressToken"])
        result = {
            "list_runtimes": {"runtimes": [RUNTIME]},
            "create_session": {"name": f"runtimes/r/sessions/{arguments.get('sessionId')}"},
            "execute_code": {"executionCount": 1},
        }.get(tool, {})
        self.answer(request, {"structuredContent": result})

    def answer(self, request, result):
        body = json.dumps({"jsonrpc": "2.0", "id": request.get("id"), "result": result}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def flood(self, request, token):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        meta = {"stream": "stdout"}
        for i in range(self.megabytes * 1_000_000 // len(CHUNK)):
            params = {"progressToken": token, "progress": i, "message": CHUNK, "_meta": meta}
            note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            self.wfile.write(b"data: " + json.dumps(note).encode() + b"\n\n")
        result = {"structuredContent": {"executionCount": 2, "outputTruncated": True}}
        done = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        self.wfile.write(b"data: " + json.dumps(done).encode() + b"\n\n")

    def log_message(self, *_):
        pass


def serve(megabytes, ready):
    Handler.megabytes = megabytes
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.put(server.server_address[1])
    server.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--stalled", action="store_true")
    options = parser.parse_args()
    binary = str(Path(options.binary).resolve())
    directory = Path(tempfile.mkdtemp())
    subprocess.run([binary, "install", "--prefix", str(directory)], check=True, stdout=subprocess.DEVNULL)
    ready = multiprocessing.Queue()
    service = multiprocessing.Process(target=serve, args=(options.megabytes, ready), daemon=True)
    service.start()
    env = dict(
        os.environ,
        COLAB_KERNEL_ENDPOINT=f"http://127.0.0.1:{ready.get()}/mcp",
        COLAB_KERNEL_TOKEN="bench",
        COLAB_KERNEL_STATE_DIR=str(directory / "state"),
    )
    manager = KernelManager(kernel_name="colab")
    manager.kernel_spec_manager.kernel_dirs = [str(directory / "share" / "jupyter" / "kernels")]
    manager.start_kernel(env=env)
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    process = psutil.Process(manager.provisioner.process.pid)
    context = zmq.Context()
    fast = context.socket(zmq.SUB)
    fast.subscribe(b"")
    fast.connect(f"tcp://{manager.ip}:{manager.iopub_port}")
    fast.recv_multipart()
    if options.stalled:
        stalled = context.socket(zmq.SUB)
        stalled.rcvhwm = 1
        stalled.subscribe(b"")
        stalled.connect(f"tcp://{manager.ip}:{manager.iopub_port}")
        time.sleep(0.5)
    client.stop_channels()
    client = manager.client()
    client.start_channels(iopub=False, stdin=False, hb=False, control=False)

    client.execute("first")
    client.get_shell_msg(timeout=60)
    began = time.perf_counter()
    client.execute("flood")
    size = count = 0
    peak = 0
    while True:
        frames = fast.recv_multipart()
        header = json.loads(frames[3])
        if header["msg_type"] == "stream":
            content = json.loads(frames[6])
            if content["name"] == "stdout":
                size += len(content["text"])
                count += 1
        elif header["msg_type"] == "status" and size and b'"idle"' in frames[6]:
            break
        if count % 50 == 0:
            peak = max(peak, process.memory_info().rss)
    elapsed = time.perf_counter() - began
    expected = options.megabytes * 1_000_000 // len(CHUNK) * len(CHUNK)
    print(
        f"{size / elapsed / 1e6:.1f} MB/s in {count} messages, {size} of {expected} bytes before idle, "
        f"peak memory {peak / 2**20:.0f} MiB"
    )
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    service.terminate()
    context.destroy(linger=0)


if __name__ == "__main__":
    sys.exit(main())
