"""The bootstrap in a real kernel: numbers, journal, control requests and prompts, on the newest versions and on Colab's.

`COLAB_KERNEL_COLAB_PYTHON` names an interpreter with Colab's published versions; the newest are those of this interpreter.
"""

import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import zmq
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.connect import write_connection_file

SOURCE = (Path(__file__).parents[2] / "src/colab/companion/bootstrap.py").read_text()
MIB = 1 << 20


def interpreter(stack):
    if stack == "newest":
        return sys.executable
    python = os.environ.get("COLAB_KERNEL_COLAB_PYTHON")
    assert python, "COLAB_KERNEL_COLAB_PYTHON must name a Python interpreter with Colab's versions of ipykernel and IPython"
    return python


class Kernel:
    """A kernel with one client; what the kernel publishes is kept in the order of its arrival."""

    def __init__(self, python, directory):
        self.python, self.directory = python, directory
        self.start()

    def start(self):
        self.seen, self.replies = [], {}
        # A short path, for the sockets' names; unlike ports they cannot be taken by somebody else meanwhile.
        self.place = tempfile.mkdtemp(prefix="ck-")
        self.file = f"{self.place}/kernel.json"
        # With a key, so that a wrong signature would show.
        write_connection_file(self.file, key=os.urandom(16).hex().encode(), transport="ipc", ip=f"{self.place}/socket")
        env = dict(os.environ, IPYTHONDIR=str(self.directory / "ipython"), PYTHONFAULTHANDLER="1")
        for name in ("PYTEST_CURRENT_TEST", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)  # ipykernel looks for the first
        self.log = open(self.directory / "kernel.log", "ab")
        command = [self.python, "-m", "ipykernel_launcher", "-f", self.file]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        # One context for all clients: to end one waits for its sockets, whatever has become of their peers.
        self.client = BlockingKernelClient(connection_file=self.file, context=zmq.Context.instance())
        self.client.load_connection_file()
        self.client.start_channels(hb=False)
        try:
            # Until the subscription has come through, what is published is lost.
            wait_for(lambda: self.read(0.5) if self.client.kernel_info() else None)
            reply = self.client.kernel_info()
            self.shell(reply)
            self.idle(reply)
        except BaseException:
            self.stop()
            raise
        self.seen.clear()

    def stop(self):
        self.client.stop_channels()
        # Leaves the stacks of all threads in the log.
        self.process.send_signal(signal.SIGABRT)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.place, ignore_errors=True)

    def restart(self):
        self.stop()
        self.start()

    def read(self, timeout):
        """The next message on iopub, put with the others; None when there is none."""
        try:
            message = self.client.get_iopub_msg(timeout=timeout)
        except queue.Empty:
            return None
        self.seen.append(message)
        return message

    def until(self, found, timeout=60):
        """Reads iopub until a message is the one looked for."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            message = self.read(left)
            if message is not None and found(message):
                return message
        raise AssertionError(f"not seen in {timeout} s; the last were {[m['msg_type'] for m in self.seen[-5:]]}")

    def shell(self, msg_id, timeout=60):
        while True:
            reply = self.client.get_shell_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == msg_id:
                return reply["content"]

    def idle(self, msg_id, timeout=60):
        return self.until(lambda m: of(m, msg_id) and m["content"].get("execution_state") == "idle", timeout)

    def finish(self, msg_id, timeout=60):
        """The reply of a cell, and what it published."""
        self.idle(msg_id, timeout)
        return self.shell(msg_id, timeout), [m for m in self.seen if of(m, msg_id)]

    def run(self, code, timeout=60, **options):
        return self.finish(self.client.execute(code, allow_stdin=False, **options), timeout)

    def install(self, source=SOURCE, **options):
        code = f"{source}\ninstall({', '.join(f'{k}={v!r}' for k, v in options.items())})\n"
        code = f"exec(compile({code!r}, '<colab-kernel>', 'exec'), {{'__name__': 'colab_kernel_companion'}})"
        reply, _ = self.run(code, silent=True, store_history=False)
        assert reply["status"] == "ok", reply
        return self.ask("status")["journal"]

    def ask(self, kind, timeout=30, check=True, raw=..., **content):
        """A control request of ours and its reply's content; the frames of a replay under `buffers`."""
        if "from_" in content:
            content["from"] = content.pop("from_")
        message = self.client.session.msg(f"ck_{kind}_request", content)
        if raw is not Ellipsis:
            message["content"] = json.dumps(raw)  # which goes as it is
        self.client.control_channel.send(message)
        while True:
            reply = self.client.control_channel.get_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == message["msg_id"]:
                break
        assert reply["msg_type"] == f"ck_{kind}_reply"
        assert not check or reply["content"]["status"] == "ok", reply["content"]
        return dict(reply["content"], buffers=[bytes(b) for b in reply["buffers"]])

    def replay(self, start, end, limit=MIB):
        """All messages from one number to another, in as many requests as it takes: (n, header, parent, metadata, content, buffers)."""
        found = []
        while start <= end:
            reply = self.ask("replay", from_=start, to=end, limit=limit)
            buffers = reply["buffers"]
            assert reply["messages"], reply
            for n, count in reply["messages"]:
                frames, buffers = buffers[:count], buffers[count:]
                found.append((n, *map(json.loads, frames[:4]), frames[4:]))
            start = n + 1
        return found

    def entry(self, msg_id):
        return next((e for e in self.ask("status")["requests"] if e["cell"] == msg_id), None)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def settle(self):
        """Everything published so far, read."""
        last = self.ask("status")["last"]
        self.until(lambda m: number(m) is not None and number(m) >= last)


def of(message, msg_id):
    return message["parent_header"].get("msg_id") == msg_id


def number(message):
    return (message["metadata"] or {}).get("ck", {}).get("n")


def text(messages):
    return "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")


def gapless(kernel, since=0):
    """Checks that the numbers on the wire are without gap and in order from `since`; how many there are."""
    numbers = [number(m) for m in kernel.seen if number(m) is not None]
    numbers = [n for n in numbers if n > since]
    assert numbers == list(range(since + 1, since + 1 + len(numbers)))
    first = next(i for i, m in enumerate(kernel.seen) if number(m) is not None)
    assert all(number(m) is not None for m in kernel.seen[first:]), "a message without a number"
    return len(numbers)


@pytest.fixture(params=["newest", "colab"])
def bare(request, tmp_path):
    kernel = Kernel(interpreter(request.param), tmp_path)
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel(bare):
    bare.journal = bare.install()
    return bare


# Numbers


def test_prints_of_main_and_threads_are_numbered_in_wire_order(kernel):
    reply, messages = kernel.run("""
import threading, sys
def work(i):
    for k in range(200):
        print(f"<{i}.{k}>", flush=k % 7 == 0)
        if k % 50 == 0: display({"thread": i})
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in threads]
for k in range(200):
    print(f"<main.{k}>", file=sys.stderr if k % 2 else sys.stdout)
[t.join() for t in threads]
""")
    assert reply["status"] == "ok"
    assert gapless(kernel) > 30
    out = text(messages)
    for name in [*map(str, range(8)), "main"]:
        assert [f"<{name}.{k}>" for k in range(200) if f"<{name}.{k}>" not in out] == []
    assert sum(m["msg_type"] == "display_data" for m in messages) == 32


def test_a_flood_of_comm_messages_with_prints_between_is_recovered_in_order(kernel):
    before = kernel.ask("status")["last"]
    msg_id = kernel.client.execute("""
try:
    from comm import create_comm
    c = create_comm(target_name="t", data={})
except ImportError:
    from ipykernel.comm import Comm
    c = Comm(target_name="t", data={})
for i in range(30000):
    c.send({"i": i}, buffers=[b"%d" % i])
    if i % 50 == 0: print("p", i)
print("over")
""")
    kernel.shell(msg_id, timeout=120)
    entry = wait_for(lambda: (e := kernel.entry(msg_id)) and e["last"] and e)
    messages = [m for m in kernel.replay(entry["first"], entry["last"]) if m[2].get("msg_id") == msg_id]
    comm = [m for m in messages if m[1]["msg_type"] == "comm_msg"]
    assert [m[4]["data"]["i"] for m in comm] == list(range(30000))
    assert all(m[5] == [b"%d" % m[4]["data"]["i"]] for m in comm)
    assert "".join(m[4]["text"] for m in messages if m[1]["msg_type"] == "stream").split("\n")[:-1] == [
        *(f"p {i}" for i in range(0, 30000, 50)), "over"]  # fmt: skip
    assert entry["first"] > before
    numbers = [m[0] for m in messages]
    assert numbers == sorted(numbers) and numbers[-1] == entry["last"]


def test_a_flood_that_is_replayed_and_acknowledged_meanwhile_ends(bare):
    bare.install(limit=8 * MIB)
    msg_id = bare.client.execute("""
import threading
def work(i):
    for k in range(1000): display({"thread": i, "k": k}); print(f"<{i}.{k}>")
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
""")
    position, found, entry = 1, [], None
    while entry is None or entry["last"] is None or position <= entry["last"]:
        reply = bare.ask("replay", from_=position, ack=position - 1, limit=MIB)
        buffers = reply["buffers"]
        for n, count in reply["messages"]:
            frames, buffers = buffers[:count], buffers[count:]
            found.append((n, *map(json.loads, frames[:4])))
            position = n + 1
        entry = bare.entry(msg_id)
    assert [m[0] for m in found] == list(range(1, len(found) + 1))
    displayed = [eval(m[4]["data"]["text/plain"]) for m in found if m[1]["msg_type"] == "display_data"]
    for i in range(4):
        assert [d["k"] for d in displayed if d["thread"] == i] == list(range(1000))
    out = "".join(m[4]["text"] for m in found if m[1]["msg_type"] == "stream")
    assert sum(out.count(f"<{i}.{k}>") for i in range(4) for k in range(1000)) == 4000


def test_output_of_forked_children_is_numbered(kernel):
    reply, messages = kernel.run("""
import multiprocessing, os, subprocess, sys
def work(i):
    for k in range(50): print(f"<{i}.{k}>", flush=True)
pid = os.fork()
if pid == 0:
    print("<forked>", flush=True)
    os._exit(0)
children = [multiprocessing.get_context("fork").Process(target=work, args=(i,)) for i in range(4)]
[c.start() for c in children]
for k in range(300): print(f"<parent.{k}>", flush=True)
[c.join() for c in children]
os.waitpid(pid, 0)
subprocess.run([sys.executable, "-c", "print('<subprocess>')"])
print("joined")
""")
    assert reply["status"] == "ok"
    kernel.settle()
    # What a child writes comes through a pipe or a socket of its own, maybe after the cell.
    wait_for(lambda: kernel.read(0.2) or "<subprocess>" in text(kernel.seen))
    wait_for(lambda: "<subprocess>" in text(kernel.seen) and "<forked>" in text(kernel.seen) or not kernel.read(1))
    out = text(kernel.seen)
    assert [f"<{i}.{k}>" for i in range(4) for k in range(50) if f"<{i}.{k}>" not in out] == []
    assert [k for k in range(300) if f"<parent.{k}>" not in out] == []
    assert "<forked>" in out and "<subprocess>" in out
    gapless(kernel)


def test_a_large_display_is_carried_whole(kernel):
    reply, messages = kernel.run("display({'image/png': 'x' * 30_000_000}, raw=True)")
    shown = next(m for m in messages if m["msg_type"] == "display_data")
    assert len(shown["content"]["data"]["image/png"]) == 30_000_000
    n = number(shown)
    # Alone, whatever the budget.
    reply = kernel.ask("replay", from_=n, to=n + 1, limit=1000)
    assert [m[0] for m in reply["messages"]] == [n]
    assert json.loads(reply["buffers"][3]) == shown["content"]
    gapless(kernel)


def test_metadata_of_the_user_is_kept_and_cannot_pass_for_ours(kernel):
    _, messages = kernel.run("display({'text/plain': 'x'}, raw=True, metadata={'a': 1}); "
                             "get_ipython().kernel.session.send(get_ipython().kernel.iopub_socket, 'mine', {}, metadata={'ck': {'n': -1}, 'b': 'ü'}, "
                             "parent=get_ipython().kernel.get_parent('shell'))")  # fmt: skip
    mine = next(m for m in messages if m["msg_type"] == "mine")
    assert mine["metadata"]["b"] == "ü"
    assert number(mine) > 0 and mine["metadata"]["ck"]["journal"] == kernel.journal
    gapless(kernel)


def test_errors_are_numbered_and_the_reply_is_repeated_on_iopub(kernel):
    reply, messages = kernel.run("print('before')\n1/0")
    assert reply["ename"] == "ZeroDivisionError"
    assert [m["msg_type"] for m in messages] == ["status", "execute_input", "stream", "error", "status"]
    mirrored = next(m for m in kernel.seen if m["msg_type"] == "ck_execute_reply")
    assert mirrored["content"]["cell"] == messages[0]["parent_header"]["msg_id"]
    assert mirrored["content"]["reply"] == reply
    # Under a parent of its own, before the cell's idle.
    assert mirrored["parent_header"]["msg_id"] != mirrored["content"]["cell"]
    assert number(mirrored) < number(messages[-1])
    gapless(kernel)


def test_payloads_and_user_expressions_are_in_the_repeated_reply(kernel):
    kernel.run("get_ipython().set_next_input('x = 1')", user_expressions={"two": "1 + 1"})
    reply = next(m for m in kernel.seen if m["msg_type"] == "ck_execute_reply")["content"]["reply"]
    assert reply["payload"][0]["text"] == "x = 1"
    assert reply["user_expressions"]["two"]["data"]["text/plain"] == "2"


def test_silent_requests_are_neither_repeated_nor_in_the_table(kernel):
    kernel.run("x = 1", silent=True, store_history=False)
    assert not any(m["msg_type"] == "ck_execute_reply" for m in kernel.seen)
    assert kernel.ask("status")["requests"] == []


def test_interrupts_of_tight_print_loops_tear_nothing(kernel):
    for i in range(100):
        # ipykernel 6 aborts what arrives for a moment after a failure.
        msg_id = kernel.client.execute(f"while True: print('round {i}')", stop_on_error=False)
        kernel.until(lambda m: of(m, msg_id) and m["msg_type"] == "stream")
        kernel.interrupt()
        reply, _ = kernel.finish(msg_id)
        assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    table = kernel.ask("status")["requests"]
    assert [(e["status"], e["ename"]) for e in table] == [("error", "KeyboardInterrupt")] * 100
    assert kernel.ask("status")["faults"] == 0
    gapless(kernel)
    last = kernel.ask("status")["last"]
    assert kernel.replay(last - 20, last)


def test_what_cannot_be_packed_never_enters_the_journal(kernel):
    reply, _ = kernel.run("""
try:
    display({'text/plain': object()}, raw=True)
except Exception as e:
    print(type(e).__name__)
try:
    print('\\ud800')
except Exception as e:
    print(type(e).__name__)
class Bad:
    def _repr_mimebundle_(self, **k): return {'text/plain': '\\ud800'}
try:
    display(Bad())
except Exception as e:
    print(type(e).__name__)
print('alive')
""")
    assert reply["status"] == "ok"
    kernel.run("print('still')")
    assert "alive" in text(kernel.seen) and "still" in text(kernel.seen)
    status = kernel.ask("status")
    assert len(kernel.replay(1, status["last"])) == status["last"]
    gapless(kernel)


# Installing


def test_installing_twice_changes_nothing(kernel):
    kernel.run("print(1)")
    assert kernel.install() == kernel.journal
    reply, messages = kernel.run("print(2)")
    assert reply["execution_count"] == 2
    gapless(kernel)
    assert sum(m["msg_type"] == "ck_execute_reply" for m in kernel.seen) == 2


def test_a_restart_loses_the_bootstrap_and_the_next_has_another_journal(kernel):
    kernel.restart()
    with pytest.raises(queue.Empty):
        kernel.ask("status", timeout=1)
    reply, messages = kernel.run("1")
    assert all(number(m) is None for m in messages)
    assert kernel.install() != kernel.journal


def test_it_leaves_no_name_and_shows_nothing(bare):
    names = "sorted(set(globals()) | set(dir(__builtins__)))"
    before = bare.run("0", user_expressions={"names": names})[0]["user_expressions"]["names"]
    bare.seen.clear()
    bare.install()
    assert {m["msg_type"] for m in bare.seen} == {"status"}
    after = bare.run("0", user_expressions={"names": names})[0]["user_expressions"]["names"]
    # The second cell adds IPython's own names, such as _i2.
    extra = set(eval(eval(json.dumps(after["data"]["text/plain"])))) - set(eval(before["data"]["text/plain"]))
    assert all(name.startswith("_") for name in extra) and not any("ck" in n or "colab" in n for n in extra)


def test_the_first_cell_of_the_user_is_number_one_after_cells_of_ours(bare):
    for _ in range(2):
        bare.run("print('colab_kernel_helper') or 7")
    bare.install(marker="colab_kernel_helper")
    bare.seen.clear()
    reply, messages = bare.run("In, Out")
    assert reply["execution_count"] == 1
    assert [m["msg_type"] for m in messages] == ["status", "execute_input", "execute_result", "status"]
    assert messages[2]["content"]["data"]["text/plain"] == "(['', 'In, Out'], {})"
    reply, messages = bare.run("1/0")
    assert reply["execution_count"] == 2
    assert "not unique" not in text(bare.seen)


def test_a_user_who_has_counted_keeps_the_numbers(bare):
    bare.run("x = 1")
    bare.install(marker="colab_kernel_helper")
    assert bare.run("x")[0]["execution_count"] == 2


def test_uninstalling_leaves_the_kernel_as_it_was(kernel):
    assert kernel.ask("uninstall")["journal"] == kernel.journal
    _, messages = kernel.run("print(1)")
    assert all(number(m) is None for m in messages)
    assert sum(m["msg_type"] == "ck_execute_reply" for m in kernel.seen) == 0
    with pytest.raises(queue.Empty):
        kernel.ask("status", timeout=1)
    reply, messages = kernel.run("k = get_ipython().kernel\n"
                                 "[n for o, n in ((k, 'raw_input'), (k, 'getpass'), (k.session, 'send'), (k.iopub_thread, '_really_send'))\n"
                                 " if getattr(o, n).__func__ is not getattr(type(o), n)]")  # fmt: skip
    assert next(m for m in messages if m["msg_type"] == "execute_result")["content"]["data"]["text/plain"] == "[]"
    again = kernel.install()
    assert again != kernel.journal
    kernel.run("print(2)")


def test_where_the_io_thread_cannot_be_wrapped_the_sender_numbers(bare):
    bare.run("""
def refuse(self, name, value):
    if name == "_really_send": raise AttributeError(name)
    object.__setattr__(self, name, value)
type(get_ipython().kernel.iopub_thread).__setattr__ = refuse
""")
    bare.install()
    assert bare.ask("status")["numbering"] == "send"
    msg_id = bare.client.execute("import threading\n"
                                 "def work():\n    for k in range(500): print(f'{k} ', end='', flush=True)\n"
                                 "t = [threading.Thread(target=work) for _ in range(4)]\n"
                                 "[x.start() for x in t]\n"
                                 "for k in range(500): display(k)\n"
                                 "[x.join() for x in t]; None")  # fmt: skip
    bare.finish(msg_id)
    entry = bare.entry(msg_id)
    messages = [m for m in bare.replay(entry["first"], entry["last"]) if m[2].get("msg_id") == msg_id]
    assert sum(m[1]["msg_type"] == "display_data" for m in messages) == 500
    out = "".join(m[4]["text"] for m in messages if m[1]["msg_type"] == "stream")
    assert sorted(map(int, out.split())) == sorted(list(range(500)) * 4)
    assert bare.ask("status")["faults"] == 0


# The journal


def test_a_replay_is_answered_while_a_cell_runs(kernel):
    msg_id = kernel.client.execute("import time\nprint('begun', flush=True)\ntime.sleep(30)")
    kernel.until(lambda m: of(m, msg_id) and m["msg_type"] == "stream")
    times = []
    for _ in range(20):
        begun = time.monotonic()
        entry = kernel.entry(msg_id)
        messages = kernel.replay(entry["first"], entry["first"] + 1)
        times.append((time.monotonic() - begun) / 2)
    assert entry["last"] is None and entry["status"] is None
    assert [m[1]["msg_type"] for m in messages] == ["execute_input", "stream"]
    print(f"control request while a cell sleeps: {1000 * sorted(times)[10]:.1f} ms median")
    kernel.interrupt()
    kernel.finish(msg_id)


def test_a_replay_waits_for_c_code_that_holds_the_interpreter(kernel):
    # Nothing in the process can answer meanwhile; it must be answered afterwards.
    msg_id = kernel.client.execute("import re\nprint('begun', flush=True)\nre.match(r'(a+)+$', 'a' * 24 + 'b')")
    kernel.until(lambda m: of(m, msg_id) and m["msg_type"] == "stream")
    assert kernel.ask("status", timeout=60)["journal"] == kernel.journal
    kernel.finish(msg_id)


def test_the_oldest_are_evicted_and_first_moves(bare):
    bare.install(limit=MIB)
    entry = None
    for i in range(6):
        msg_id = bare.client.execute(f"print('{i}' * 400_000)")
        bare.finish(msg_id)
        entry = entry or bare.entry(msg_id)
    status = bare.ask("status")
    assert status["first"] > entry["last"] and status["bytes"] <= status["limit"] == MIB
    # The table still knows.
    assert [(e["status"], e["count"]) for e in status["requests"]] == [("ok", i) for i in range(1, 7)]
    reply = bare.ask("replay", from_=1)
    assert reply["messages"][0][0] == reply["first"] > 1
    reply = bare.ask("replay", check=False, from_=1, length=10)
    assert reply["status"] == "error" and reply["journal"]


def test_the_newest_message_is_kept_even_if_it_is_above_the_limit(bare):
    bare.install(limit=MIB)
    msg_id = bare.client.execute("import time\nprint('x' * 5_000_000, flush=True)\ntime.sleep(30)")
    shown = bare.until(lambda m: of(m, msg_id) and m["msg_type"] == "stream" and len(m["content"]["text"]) > MIB)
    bare.interrupt()
    bare.finish(msg_id)
    assert bare.ask("status")["first"] > number(shown)


def test_an_acknowledgement_prunes(kernel):
    kernel.run("print('x' * 1000)")
    status = kernel.ask("status")
    reply = kernel.ask("ack", ack=status["last"])
    assert reply["first"] == status["last"] + 1
    assert kernel.ask("replay", from_=1, to=status["last"])["messages"] == []
    # The rest is there, and one beyond the end takes only what is there.
    assert kernel.replay(reply["first"], reply["last"])
    reply = kernel.ask("ack", ack=10**9)
    assert reply["first"] == reply["last"] + 1
    assert kernel.ask("status")["bytes"] < 10_000
    # With a replay, for what came before it.
    kernel.run("print('y')")
    last = kernel.ask("status")["last"]
    reply = kernel.ask("replay", from_=1, ack=last - 1)
    assert reply["first"] == last and reply["messages"][0][0] == last
    # The acknowledgement of another journal prunes nothing.
    reply = kernel.ask("ack", check=False, ack=10**9, journal="other")
    assert reply["status"] == "error"
    assert kernel.ask("status")["first"] == last


def test_a_replay_keeps_to_its_budget(kernel):
    kernel.run("for i in range(20): display({'text/plain': str(i) * 10_000}, raw=True)")
    last = kernel.ask("status")["last"]
    reply = kernel.ask("replay", from_=1, to=last, limit=50_000)
    assert sum(map(len, reply["buffers"])) <= 50_000
    assert 2 < len(reply["messages"]) < 15
    messages = kernel.replay(1, last, limit=1)
    assert [m[0] for m in messages] == list(range(1, last + 1))


def test_a_message_comes_in_slices(kernel):
    _, messages = kernel.run("display({'text/plain': 'abc' * 100_000}, raw=True)")
    n = number(next(m for m in messages if m["msg_type"] == "display_data"))
    whole = b"".join(kernel.ask("replay", from_=n, to=n)["buffers"])
    got, sizes = b"", None
    while sizes is None or len(got) < sum(sizes):
        reply = kernel.ask("replay", from_=n, offset=len(got), length=65_536)
        assert reply["n"] == n and len(reply["buffers"]) == 1
        sizes, got = reply["sizes"], got + reply["buffers"][0]
    assert got == whole and len(sizes) == 4
    assert kernel.ask("replay", from_=n, offset=len(whole), length=10)["buffers"] == [b""]


def test_what_is_replayed_is_what_went_out(kernel):
    _, messages = kernel.run("""
data = bytearray(b"first")
get_ipython().kernel.session.send(get_ipython().kernel.iopub_socket, "mine", {"a": "ü\\u2028𝄞"}, buffers=[memoryview(data), b""], parent=get_ipython().kernel.get_parent("shell"))
import sys; sys.stdout.flush()
data[:] = b"later"
""")
    mine = next(m for m in messages if m["msg_type"] == "mine")
    n, header, parent, metadata, content, buffers = kernel.replay(number(mine), number(mine))[0]
    assert header["msg_id"] == mine["header"]["msg_id"] and parent["msg_id"] == mine["parent_header"]["msg_id"]
    assert (metadata, content) == (mine["metadata"], mine["content"])
    assert buffers == [bytes(b) for b in mine["buffers"]] == [b"first", b""]


@pytest.mark.parametrize(
    "kind, content",
    [
        ("replay", {}),
        ("replay", {"from": "1"}),
        ("replay", {"from": -1}),
        ("replay", {"from": True}),
        ("replay", {"from": 1, "limit": None}),
        ("replay", {"from": 1, "to": 1.5}),
        ("replay", {"from": 1, "length": None}),
        ("replay", {"from": 1, "length": -1}),
        ("replay", {"from": 1, "length": 1, "offset": "0"}),
        ("replay", {"from": 10**12, "length": 1}),
        ("replay", []),
        ("status", "text"),
        ("status", None),
        ("replay", {"from": 1, "journal": "other"}),
        ("status", {"since": "x"}),
        ("status", {"ack": []}),
        ("ack", {}),
        ("ack", {"ack": {}}),
        ("answer", {}),
        ("answer", {"key": "k"}),
        ("answer", {"key": "k", "value": 1}),
        ("answer", {"key": [], "value": "x"}),
        ("answer", {"key": "k", "eof": False}),
        ("answer", {"key": "k", "eof": True, "value": "x"}),
        ("answer", {"key": "k", "refused": True}),
        ("uninstall", {"journal": "other"}),
    ],
)
def test_a_malformed_request_is_answered_with_an_error(shared, kind, content):
    reply = shared.ask(kind, check=False, raw=content)
    assert reply["status"] == "error" and reply["ename"] and reply["traceback"] == []
    assert shared.ask("status")["journal"] == shared.journal


@pytest.fixture(scope="module", params=["newest", "colab"])
def shared(request, tmp_path_factory):
    kernel = Kernel(interpreter(request.param), tmp_path_factory.mktemp("shared"))
    kernel.journal = kernel.install()
    yield kernel
    kernel.stop()


# The table


def test_the_table_tells_how_executions_ended(kernel):
    def entry_of(code, **options):
        msg_id = kernel.client.execute(code, **options)
        kernel.finish(msg_id)
        entry = kernel.entry(msg_id)
        assert entry["code"] == hashlib.sha256(code.encode()).hexdigest()
        assert entry["session"] == kernel.client.session.session
        assert kernel.replay(entry["last"], entry["last"])[0][4] == {"execution_state": "idle"}
        return entry

    ok = entry_of("print('ü')")
    assert (ok["status"], ok["ename"], ok["count"]) == ("ok", None, 1)
    assert kernel.replay(ok["first"], ok["first"])[0][1]["msg_type"] == "execute_input"
    error = entry_of("1/0", stop_on_error=False)
    assert (error["status"], error["ename"], error["count"]) == ("error", "ZeroDivisionError", 2)
    syntax = entry_of("1 +", stop_on_error=False)
    assert (syntax["status"], syntax["ename"]) == ("error", "SyntaxError")

    failing = kernel.client.execute("import time; time.sleep(1); 1/0")
    aborted = kernel.client.execute("print('never')")
    assert kernel.finish(aborted)[0]["status"] == "aborted"
    entry = kernel.entry(aborted)
    assert (entry["status"], entry["count"]) == ("aborted", None) and entry["last"] >= entry["first"]
    assert entry["code"] == hashlib.sha256(b"print('never')").hexdigest()
    assert kernel.entry(failing)["status"] == "error"

    sleeping = kernel.client.execute("print('begun', flush=True); time.sleep(60)")
    kernel.until(lambda m: of(m, sleeping) and m["msg_type"] == "stream")
    kernel.interrupt()
    kernel.finish(sleeping)
    assert kernel.entry(sleeping)["ename"] == "KeyboardInterrupt"
    # Only what ended at or after a number.
    since = kernel.entry(sleeping)["last"]
    assert [e["cell"] for e in kernel.ask("status", since=since)["requests"]] == [sleeping]


def test_the_table_keeps_the_latest_two_hundred(kernel):
    for i in range(205):
        kernel.run(f"{i};")
    table = kernel.ask("status")["requests"]
    assert [e["count"] for e in table] == list(range(6, 206))


# Prompts


def prompt(kernel, seen=()):
    """The next prompt that is not among those seen."""
    message = kernel.until(lambda m: m["msg_type"] == "ck_input_request" and m["content"]["key"] not in seen)
    assert message["parent_header"]["msg_id"] != message["content"]["cell"]
    return message["content"]


def by_control(kernel, key, **answer):
    assert kernel.ask("answer", key=key, **answer)["taken"]


def by_stdin(kernel, key, **answer):
    content = {"value": {"type": "ck_answer", "key": key, **answer}}
    kernel.client.stdin_channel.send(kernel.client.session.msg("input_reply", content))


@pytest.mark.parametrize("answer", [by_control, by_stdin])
def test_prompts_are_answered_by_their_key(kernel, answer):
    msg_id = kernel.client.execute("""
import getpass
print('before', end='')
a = input('Name? ')
for ask in (input, input):
    try:
        ask()
    except Exception as e:
        print(type(e).__name__, e)
b = getpass.getpass('Secret? ')
(a, b, input(7))
""", allow_stdin=False)  # fmt: skip
    asked = []
    for reply in ({"value": "forty-two ü"}, {"eof": True}, {"refused": "not here"}, {"value": "sesame"}, {"value": ""}):
        asked.append(prompt(kernel, [a["key"] for a in asked]))
        assert asked[-1]["cell"] == msg_id
        assert kernel.ask("status")["inputs"] == [asked[-1]]
        if len(asked) == 1:
            assert text([m for m in kernel.seen if of(m, msg_id)]) == "before"
            # None of these answers it.
            kernel.client.input("a stranger's")
            by_stdin(kernel, "another key", value="no")
            by_stdin(kernel, asked[-1]["key"], value=5)
            assert not kernel.ask("answer", key="another key", value="no")["taken"]
        answer(kernel, asked[-1]["key"], **reply)
    reply, messages = kernel.finish(msg_id)
    assert [(a["prompt"], a["password"]) for a in asked] == [
        ("Name? ", False), ("", False), ("", False), ("Secret? ", True), ("7", False)]  # fmt: skip
    assert text(messages) == "beforeEOFError \nStdinNotImplementedError not here\n"
    result = next(m for m in messages if m["msg_type"] == "execute_result")
    assert result["content"]["data"]["text/plain"] == "('forty-two ü', 'sesame', '')"
    assert kernel.ask("status")["inputs"] == []
    assert not kernel.ask("answer", key=asked[0]["key"], value="late")["taken"]
    gapless(kernel)


def test_a_prompt_is_repeated_until_it_is_answered(kernel):
    msg_id = kernel.client.execute("input('?')")
    first = prompt(kernel)
    for _ in range(2):
        again = prompt(kernel)
        assert again == first
    by_control(kernel, first["key"], value="x")
    assert kernel.finish(msg_id)[0]["status"] == "ok"


def test_the_first_answer_counts(kernel):
    msg_id = kernel.client.execute("input('?')")
    key = prompt(kernel)["key"]
    by_control(kernel, key, value="one")
    kernel.ask("answer", key=key, value="two")
    _, messages = kernel.finish(msg_id)
    assert next(m for m in messages if m["msg_type"] == "execute_result")["content"]["data"]["text/plain"] == "'one'"


@pytest.mark.parametrize("code", ["input('?')", "import asyncio\nawait asyncio.sleep(0)\ninput('?')", "import getpass; getpass.getpass()"])
def test_a_prompt_is_interruptible(kernel, code):
    msg_id = kernel.client.execute(code)
    key = prompt(kernel)["key"]
    begun = time.monotonic()
    kernel.interrupt()
    reply, _ = kernel.finish(msg_id)
    assert (reply["ename"], reply["evalue"]) == ("KeyboardInterrupt", "Interrupted by user")
    assert time.monotonic() - begun < 2
    assert not kernel.ask("answer", key=key, value="late")["taken"]
    assert kernel.run("print('next')")[0]["status"] == "ok"


def test_a_prompt_of_somebody_else_is_left_to_the_kernel(kernel):
    msg_id = kernel.client.execute("input('Stranger? ')", allow_stdin=True)
    by_control(kernel, prompt(kernel)["key"], native=True)
    asked = kernel.client.get_stdin_msg(timeout=30)
    assert asked["content"]["prompt"] == "Stranger? "
    kernel.client.input("me")
    _, messages = kernel.finish(msg_id)
    assert next(m for m in messages if m["msg_type"] == "execute_result")["content"]["data"]["text/plain"] == "'me'"


def test_a_thread_asks(kernel):
    msg_id = kernel.client.execute("import threading\nt = threading.Thread(target=lambda: print('got', input('?')))\nt.start(); t.join()")
    by_control(kernel, prompt(kernel)["key"], value="it")
    _, messages = kernel.finish(msg_id)
    assert text(messages) == "got it\n"


def test_the_debugger_asks(kernel):
    msg_id = kernel.client.execute("def f(x):\n    import pdb; pdb.set_trace()\n    return x + 1\nf(41)")
    seen = []
    for command in ("p x * 2", "c"):
        asked = prompt(kernel, seen)
        seen.append(asked["key"])
        assert "db" in asked["prompt"]
        by_control(kernel, asked["key"], value=command)
    _, messages = kernel.finish(msg_id)
    assert "82" in text(messages)
    assert next(m for m in messages if m["msg_type"] == "execute_result")["content"]["data"]["text/plain"] == "42"


def test_a_prompt_that_is_open_when_the_bootstrap_goes_is_the_kernels_again(kernel):
    msg_id = kernel.client.execute("input('?')", allow_stdin=False)
    prompt(kernel)
    kernel.ask("uninstall")
    reply, _ = kernel.finish(msg_id)
    assert reply["ename"] == "StdinNotImplementedError"


# Cost


def test_the_cost_is_printed(bare):
    cells = {
        "pass": ("pass", 40),
        "20 MB in 400,000 prints": ("for _ in range(400_000): print('x' * 49)", 1),
        "20 MB in one print": ("print('x' * 20_000_000)", 2),
        "2,000 displays": ("for i in range(2000): display(i)", 1),
    }
    best = {}
    for _ in range(3):
        for state in ("without", "with"):
            if state == "with":
                bare.install()
            for name, (code, rounds) in cells.items():
                for _ in range(rounds):
                    begun = time.monotonic()
                    bare.run(code, timeout=120)
                    taken = time.monotonic() - begun
                    best[name, state] = min(taken, best.get((name, state), taken))
                    bare.seen.clear()
        bare.ask("uninstall")
    for name in cells:
        base, full = best[name, "without"], best[name, "with"]
        print(f"{name}: {1000 * base:.1f} ms without, {1000 * full:.1f} ms with, ratio {full / base:.2f}")


def wait_for(found, timeout=60):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")
