"""Interrupting an endless loop, in every protocol era and in both readings of what cancels a call."""

import time

import pytest

ERAS = ["2026-07-28", "plain", "2025-11-25"]
CANCELS = ["notification", "disconnect"]


@pytest.mark.parametrize("cancel", CANCELS)
@pytest.mark.parametrize("era", ERAS)
def test_an_endless_loop_is_interrupted_in_under_a_second(era, cancel, emulator_with, front_for, kernels):
    kernel = kernels(front_for(emulator_with(f"era={era}", f"cancel={cancel}")))
    kernel.run("kept = 1")
    client = kernel.client
    loop = client.execute("print('begun', flush=True)\nwhile True: pass")
    queued = client.execute("print('never')")
    while True:
        message = client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") == loop and message["msg_type"] == "stream":
            break
    asked = time.monotonic()
    kernel.manager.interrupt_kernel()
    reply, _ = kernel.collect(loop, 30)
    assert time.monotonic() - asked < 1
    assert reply["content"]["status"] == "error"
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    reply, _ = kernel.collect(queued, 30)
    assert reply["content"]["status"] == "error"
    reply, messages = kernel.run("kept", timeout=30)
    assert reply["content"]["status"] == "ok"
    results = [m["content"]["data"]["text/plain"] for _, m in messages if m["msg_type"] == "execute_result"]
    assert results == ["1"]
