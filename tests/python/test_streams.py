"""Text as it arrives: promptness, completeness, order, size; and a subscriber that stops reading."""

import os
import signal
import subprocess
import sys
import threading
import time

from jupyter_client.blocking import BlockingKernelClient


def streams(messages, name=None):
    return [
        (at, message["content"]["text"])
        for at, message in messages
        if message["msg_type"] == "stream" and (name is None or message["content"]["name"] == name)
    ]


def plain_client(kernel):
    """A client of the remote kernel itself, past everything of ours: what a chunk's arrival is measured against."""
    kernel.run("import ipykernel")
    _, messages = kernel.run("print(ipykernel.get_connection_file())")
    client = BlockingKernelClient(connection_file="".join(text for _, text in streams(messages)).strip())
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=30)
    return client


def test_each_chunk_is_shown_within_100_ms_of_its_arrival_at_a_plain_client(front, kernels):
    kernel = kernels(front)
    plain = plain_client(kernel)
    arrivals = {}

    def listen():
        while len(arrivals) < 8:
            message = plain.get_iopub_msg(timeout=60)
            if message["msg_type"] == "stream":
                arrivals[message["content"]["text"]] = time.monotonic()

    listener = threading.Thread(target=listen)
    listener.start()
    code = "import time\nfor i in range(8):\n    print('chunk', i, flush=True)\n    time.sleep(0.4)"
    _, messages = kernel.run(code)
    listener.join(timeout=60)
    plain.stop_channels()
    shown = {text: at for at, text in streams(messages, "stdout")}
    assert shown.keys() == arrivals.keys() and len(shown) == 8
    delays = {text: shown[text] - arrivals[text] for text in shown}
    assert max(delays.values()) < 0.1, delays


def test_a_large_print_arrives_whole_and_in_order_in_few_messages(front, kernels):
    kernel = kernels(front)
    reply, messages = kernel.run("for i in range(200_000):\n    print(f'{i:099d}')")
    assert reply["content"]["status"] == "ok"
    texts = [text for _, text in streams(messages, "stdout")]
    assert "".join(texts) == "".join(f"{i:099d}\n" for i in range(200_000))
    assert len(texts) < 1000
    assert max(len(text.encode()) for text in texts) <= 128 * 1024
    assert messages[-1][1]["content"] == {"execution_state": "idle"}


def test_alternating_streams_keep_their_order_at_a_bounded_rate(emulator_with, front_for, kernels):
    kernel = kernels(front_for(emulator_with("progress=json")))
    kernel.run("import sys")
    code = (
        "for i in range(2000):\n"
        "    print('out', i, flush=True)\n"
        "    print('err', i, file=sys.stderr, flush=True)"
    )
    _, messages = kernel.run(code)
    expected = "".join(f"out {i}\nerr {i}\n" for i in range(2000))
    assert "".join(text for _, text in streams(messages)) == expected
    # When each was published, not when this process came to read it.
    times = [m["header"]["date"].timestamp() for _, m in messages if m["msg_type"] == "stream"]
    for i, start in enumerate(times):
        within = sum(1 for at in times[i:] if at < start + 1)
        assert within <= 800, "more than 800 stream messages in a second"


def test_a_stopped_subscriber_does_not_hold_back_another(front, kernels):
    kernel = kernels(front)
    reader = (
        "import sys, zmq; s = zmq.Context().socket(zmq.SUB); s.subscribe(b'');"
        "s.connect(sys.argv[1]); s.recv_multipart(); print('ready', flush=True);"
        "[s.recv_multipart() for _ in iter(int, 1)]"
    )
    kernel.run("'a first cell, so that no notice about the machine stands before the text'")
    url = f"tcp://{kernel.manager.ip}:{kernel.manager.iopub_port}"
    stopped = subprocess.Popen([sys.executable, "-c", reader, url], stdout=subprocess.PIPE, text=True)
    try:
        assert stopped.stdout.readline() == "ready\n"
        os.kill(stopped.pid, signal.SIGSTOP)
        _, messages = kernel.run("for i in range(400_000):\n    print(f'{i:099d}')")
        assert "".join(t for _, t in streams(messages)) == "".join(f"{i:099d}\n" for i in range(400_000))
        reply, messages = kernel.run("6 * 7")
        assert reply["content"]["status"] == "ok"
    finally:
        stopped.kill()
        stopped.wait()


def test_without_the_companion_input_fails_at_once_with_a_named_error(front, kernels):
    front.env["COLAB_KERNEL_COMPANION"] = "off"
    kernel = kernels(front)
    reply, _ = kernel.run("input('name? ')", timeout=30)
    assert reply["content"]["ename"] == "StdinNotImplementedError"
    reply, _ = kernel.run("'on'")
    assert reply["content"]["status"] == "ok"
