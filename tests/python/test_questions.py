"""What a cell asks of the user, what the front-end asks of the kernel, and what comes when nobody asks any more."""

import time

import pytest

import reference
from conftest import Emulator


@pytest.fixture(scope="module", params=reference.STACKS)
def stack(request):
    emulator = Emulator(f"kernels={request.param}")
    emulator.stack = request.param
    yield emulator
    emulator.stop()


@pytest.fixture
def kernel(stack, front_for, kernels):
    """A kernel; all of a stack are on one runtime."""
    front = front_for(stack)
    front.env["COLAB_KERNEL_TOKEN"] = front.token = "questions"
    return kernels(front)


def printed(messages, name="stdout"):
    return "".join(m["content"]["text"] for _, m in messages if m["msg_type"] == "stream" and m["content"]["name"] == name)


def answered(kernel, code, *answers, timeout=60):
    """Runs a cell and answers its prompts in turn: the prompts, the reply and the messages."""
    msg_id = kernel.client.execute(code, allow_stdin=True)
    prompts = []
    for answer in answers:
        prompts.append(prompt(kernel, msg_id, timeout))
        kernel.client.input(answer)
    reply, messages = kernel.collect(msg_id, timeout)
    assert not kernel.client.stdin_channel.msg_ready()
    return prompts, reply["content"], messages


def prompt(kernel, msg_id, timeout=60):
    message = kernel.client.get_stdin_msg(timeout=timeout)
    assert message["msg_type"] == "input_request"
    assert message["parent_header"]["msg_id"] == msg_id
    return message["content"]


def told(kernel, code):
    reply, messages = kernel.run(code)
    assert reply["content"]["status"] == "ok", reply["content"]
    return printed(messages)


def until(kernel, msg_id, seen, timeout=60):
    """The first message of a request of which this holds."""
    deadline = time.monotonic() + timeout
    while True:
        message = kernel.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
        if message["parent_header"].get("msg_id") == msg_id and seen(message):
            return message


def says(words):
    return lambda message: message["msg_type"] == "stream" and words in message["content"]["text"]


def shell_reply(kernel, msg_id, timeout=60):
    deadline = time.monotonic() + timeout
    while True:
        reply = kernel.client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
        if reply["parent_header"].get("msg_id") == msg_id:
            return reply["content"]


# What a cell asks


def test_input_gets_what_was_typed(kernel):
    prompts, reply, messages = answered(kernel, "print('before')\nname = input('Name? ')\nprint('hello', name)", "Zoë 𝄞")
    assert reply["status"] == "ok"
    assert prompts == [{"prompt": "Name? ", "password": False}]
    assert printed(messages) == "before\nhello Zoë 𝄞\n"


def test_a_password_is_asked_for_as_one_and_is_written_nowhere(kernel, front_for, stack):
    prompts, reply, messages = answered(kernel, "import getpass\nprint(len(getpass.getpass('Key: ')))", "pass-w0rd-of-mine")
    assert prompts == [{"prompt": "Key: ", "password": True}]
    assert printed(messages) == "17\n"
    assert "pass-w0rd" not in str(reply)


def test_control_d_is_the_end_of_the_input(kernel):
    _, reply, messages = answered(kernel, "try:\n    input()\nexcept EOFError:\n    print('over')\ninput()", "\x04", "\x04")
    assert printed(messages) == "over\n"
    assert reply["ename"] == "EOFError"


def test_a_front_end_that_cannot_be_asked_refuses(kernel):
    for ask in ("input('x')", "import getpass; getpass.getpass()"):
        msg_id = kernel.client.execute(ask, allow_stdin=False)
        reply, _ = kernel.collect(msg_id)
        assert reply["content"]["ename"] == "StdinNotImplementedError"
        assert "input" in reply["content"]["evalue"]
    assert not kernel.client.stdin_channel.msg_ready()
    assert told(kernel, "print('goes on')") == "goes on\n"


def test_the_debugger_steps_by_its_prompts(kernel):
    # debugpy, which ipykernel loads, makes breakpoint() do nothing while its own front-end is not there.
    told(kernel, "import sys\nsys.breakpointhook = sys.__breakpointhook__")
    code = "def f():\n    a = 1\n    breakpoint()\n    b = a + 1\n    return b\nprint('result', f())"
    prompts, reply, messages = answered(kernel, code, "n", "p a + 41", "c")
    assert reply["status"] == "ok", reply
    assert len(prompts) == 3 and all("db" in one["prompt"] for one in prompts)
    text = printed(messages)
    assert "42" in text and text.endswith("result 2\n")


def test_questions_in_a_loop_come_one_by_one_in_order(kernel):
    words = [f"word {i}" for i in range(20)]
    prompts, _, messages = answered(kernel, "for i in range(20):\n    print(i, input(f'{i}: '))", *words)
    assert [one["prompt"] for one in prompts] == [f"{i}: " for i in range(20)]
    assert printed(messages) == "".join(f"{i} word {i}\n" for i in range(20))


def test_an_interrupt_ends_a_prompt_and_its_late_answer_answers_nothing(kernel):
    for _ in range(3):
        msg_id = kernel.client.execute("input('? ')", allow_stdin=True)
        prompt(kernel, msg_id)
        kernel.manager.interrupt_kernel()
        reply, messages = kernel.collect(msg_id)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert [m["content"]["ename"] for _, m in messages if m["msg_type"] == "error"] == ["KeyboardInterrupt"]
    kernel.client.input("too late")
    assert told(kernel, "print('goes on')") == "goes on\n"
    _, _, messages = answered(kernel, "print(input('again? '))", "in time")
    assert printed(messages) == "in time\n"


@pytest.mark.parametrize("after", [12, 15])
def test_an_answer_arrives_while_the_connection_is_cut_again_and_again(after, stack, emulator_with, front_for, kernels):
    kernel = kernels(front_for(emulator_with(f"kernels={stack.stack}", f"companion=cut:{after}")))
    words = [f"word {i}" for i in range(12)]
    code = "for i in range(12):\n    print('asking', i)\n    print('heard', input(f'{i}: '))"
    prompts, reply, messages = answered(kernel, code, *words)
    assert reply["status"] == "ok"
    assert [one["prompt"] for one in prompts] == [f"{i}: " for i in range(12)]
    assert printed(messages) == "".join(f"asking {i}\nheard word {i}\n" for i in range(12))


# What the front-end asks


def usage(kernel):
    message = kernel.client.session.msg("usage_request", {})
    kernel.client.control_channel.send(message)
    while True:
        reply = kernel.client.get_control_msg(timeout=30)
        if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
            return reply["content"]


def test_usage_is_that_of_the_remote_machine_also_while_a_cell_runs(kernel):
    nobody_there = usage(kernel)
    assert nobody_there["status"] == "error" and nobody_there["ename"] == "ColabCompanionUnavailable"
    remote = int(told(kernel, "import os\nprint(os.getpid())"))
    idle = usage(kernel)
    assert idle["pid"] == remote and idle["host_virtual_memory"]["total"] > 0
    msg_id = kernel.client.execute("print('runs', flush=True)\nimport time\nwhile True: time.sleep(0.01)")
    until(kernel, msg_id, says("runs"))
    assert usage(kernel)["pid"] == remote
    kernel.manager.interrupt_kernel()
    kernel.collect(msg_id)


def test_comms_are_told_by_target(kernel):
    assert shell_reply(kernel, kernel.client.comm_info())["comms"] == {}
    told(kernel, "try:\n    from comm import create_comm\nexcept ImportError:\n    from ipykernel.comm import Comm as create_comm\n"
                 "one = create_comm(target_name='mine', data={})\ntwo = create_comm(target_name='other', data={})")  # fmt: skip
    comms = shell_reply(kernel, kernel.client.comm_info())["comms"]
    assert sorted(comm["target_name"] for comm in comms.values()) == ["mine", "other"]
    only = shell_reply(kernel, kernel.client.comm_info(target_name="mine"))["comms"]
    assert [comm["target_name"] for comm in only.values()] == ["mine"]


def test_completion_knows_variables_and_types(kernel):
    told(kernel, "abracadabra = {'alpha': 1}\ndef abracafunction(): pass")
    started = time.monotonic()
    reply = shell_reply(kernel, kernel.client.complete("print(abraca)", 12))
    if time.monotonic() - started > 9.5 and not reply["matches"]:
        # The first question loads jedi, which can take longer on a busy machine than a question may.
        reply = shell_reply(kernel, kernel.client.complete("print(abraca)", 12))
    assert reply["status"] == "ok"
    assert {"abracadabra", "abracafunction"} <= set(reply["matches"])
    assert (reply["cursor_start"], reply["cursor_end"]) == (6, 12)
    types = {one["text"]: one["type"] for one in reply["metadata"]["_jupyter_types_experimental"]}
    assert {"abracadabra", "abracafunction"} <= types.keys()
    # The cursor counts characters, not bytes and not UTF-16.
    reply = shell_reply(kernel, kernel.client.complete("'𝄞é'; abraca", 12))
    assert (reply["cursor_start"], reply["cursor_end"]) == (6, 12)
    assert "abracadabra" in reply["matches"]


def test_a_completion_that_fails_is_an_empty_one(kernel):
    told(kernel, "import IPython\nshell = get_ipython()\ndef broken(*a, **k): raise RuntimeError('as asked')\n"
                 "get_ipython().kernel.do_complete = broken")  # fmt: skip
    reply = shell_reply(kernel, kernel.client.complete("abc", 3))
    assert reply["status"] in ("ok", "error")
    if reply["status"] == "ok":
        assert reply["matches"] == [] and (reply["cursor_start"], reply["cursor_end"]) == (3, 3) and reply["metadata"] == {}
    told(kernel, "del get_ipython().kernel.do_complete")
    assert "abs" in shell_reply(kernel, kernel.client.complete("ab", 2))["matches"]


def test_inspection_shows_the_docstring_and_with_detail_the_source(kernel):
    told(kernel, "def shout(words, loud=True):\n    '''Says words.'''\n    return words.upper()")
    short = shell_reply(kernel, kernel.client.inspect("shout(", 6, detail_level=0))
    assert short["status"] == "ok" and short["found"]
    text = short["data"]["text/plain"]
    assert "shout(words, loud=True)" in text.replace("\x1b[0m", "").replace("\x1b[0;31m", "") or "shout" in text
    assert "Says words." in text and "words.upper()" not in text
    long = shell_reply(kernel, kernel.client.inspect("shout(", 6, detail_level=1))
    assert "upper" in long["data"]["text/plain"]
    absent = shell_reply(kernel, kernel.client.inspect("no_such_name", 5))
    assert absent["status"] == "ok" and absent["found"] is False and absent["data"] == {}


# When nobody asks any more


def test_output_and_updates_of_a_thread_arrive_after_the_cells_end(kernel):
    code = """
import threading
from IPython.display import HTML, display
handle = display(HTML('<i>first</i>'), display_id='mine')
go = threading.Event()
def late():
    go.wait(60)
    print('late words', flush=True)
    handle.update(HTML('<i>second</i>'))
thread = threading.Thread(target=late)
thread.start()
"""
    reply, messages = kernel.run(code)
    assert reply["content"]["status"] == "ok"
    first = [m["content"] for _, m in messages if m["msg_type"] == "display_data"]
    assert first[0]["data"]["text/html"] == "<i>first</i>"
    second = kernel.client.execute("go.set()")
    said, updated = False, None
    deadline = time.monotonic() + 60
    while not (said and updated):
        message = kernel.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
        said |= says("late words")(message)
        if message["msg_type"] == "update_display_data":
            updated = message["content"]
    assert updated["data"]["text/html"] == "<i>second</i>"
    assert updated["transient"]["display_id"] == "mine"
    assert shell_reply(kernel, second)["status"] == "ok"
