"""What Colab's own helpers do where there is no Colab web page, and the variables that code on Colab gets."""

import glob
import json
import os
import time
from pathlib import Path

import pytest

from conftest import Emulator

SECRET = "hf_" + "".join(chr(ord("a") + i % 7) for i in range(40)) + '"\\\n é'
# The secret as a cell may name it without holding it.
SPELT = "('hf_' + ''.join(chr(ord('a') + i % 7) for i in range(40)) + '\"\\\\\\n \\u00e9')"
AT_ONCE = 2


@pytest.fixture(scope="module")
def colab():
    emulator = Emulator("kernels=colab")
    yield emulator
    emulator.stop()


@pytest.fixture
def user(colab, front_for):
    """One user for all, so that there is one runtime."""
    front = front_for(colab)
    front.env["COLAB_KERNEL_TOKEN"] = front.token = "helpers"
    return front


def printed(messages):
    return "".join(m["content"]["text"] for _, m in messages if m["msg_type"] == "stream" and m["content"]["name"] == "stdout")


def shown(messages):
    """The kinds of what a cell leaves on the page: what was said while a runtime started is cleared again."""
    kinds = [m["msg_type"] for _, m in messages if m["msg_type"] not in ("status", "execute_input")]
    cleared = [i for i, kind in enumerate(kinds) if kind == "clear_output"]
    return kinds[cleared[-1] + 1 :] if cleared else kinds


def told(kernel, code):
    """What a cell prints; it must end well."""
    reply, messages = kernel.run(code)
    assert reply["content"]["status"] == "ok", reply["content"]
    return printed(messages)


def failed_at_once(kernel, code):
    """The exception of a cell, which must come at once."""
    assert told(kernel, "print('there is a session')")
    started = time.monotonic()
    reply, _ = kernel.run(code)
    assert time.monotonic() - started < AT_ONCE
    assert reply["content"]["status"] == "error", reply["content"]
    return reply["content"]


HELPERS = {
    "from google.colab import userdata; userdata.get('NOT_FORWARDED')": ["NOT_FORWARDED", "COLAB_KERNEL_FORWARD_ENV"],
    "from google.colab import files; files.upload()": ["files.upload()", "/content"],
    "from google.colab import output; output.eval_js('1 + 1')": ["output.eval_js()", "/content"],
    "from google.colab import auth; auth.authenticate_user()": ["service account", "gcloud"],
    "from google.colab import drive; drive.mount('/content/drive')": ["drive.mount()", "rclone"],
    "open('a.txt', 'w').close(); from google.colab import files; files.download('a.txt')": ["files.download()", "stays on the runtime"],
}


@pytest.mark.parametrize("code", HELPERS)
def test_a_helper_of_the_web_page_fails_at_once_with_what_works_here(code, user, kernels):
    raised = failed_at_once(kernels(user), code)
    for words in HELPERS[code]:
        assert words in raised["evalue"], raised


def test_a_download_shows_nothing_and_opens_nothing(user, kernels):
    kernel = kernels(user)
    _, messages = kernel.run("open('a.txt', 'w').close(); from google.colab import files; files.download('a.txt')")
    assert shown(messages) == ["error"]


@pytest.mark.parametrize("code", HELPERS)
def test_a_helper_of_the_web_page_fails_at_once_without_the_companion(code, user, kernels):
    user.env["COLAB_KERNEL_COMPANION"] = "off"
    raised = failed_at_once(kernels(user), code)
    assert raised["ename"] in ("StdinNotImplementedError", "NotImplementedError"), raised
    assert len(raised["evalue"]) > 30


def test_what_the_companion_brings_leaves_no_name_and_no_number(user, kernels):
    kernel = kernels(user)
    reply, messages = kernel.run("print(sorted(name for name in globals() if not name.startswith('_')))")
    assert reply["content"]["execution_count"] == 1
    assert shown(messages) == ["stream"]
    assert printed(messages).endswith("['In', 'Out', 'exit', 'get_ipython', 'quit']\n")
    told(kernel, "import google.colab")
    assert told(kernel, "print([i for i in sorted(globals()) if not i.startswith('_')])").count("google") == 1


def test_the_newest_stack_has_no_google_colab_and_does_not_mind(emulator_with, front_for, kernels):
    kernel = kernels(front_for(emulator_with("kernels=newest")))
    reply, messages = kernel.run("import google.colab")
    assert reply["content"]["ename"] == "ModuleNotFoundError"
    assert shown(messages) == ["error"]


def test_commands_talk_and_listen(user, kernels):
    kernel = kernels(user)
    assert told(kernel, "!echo one two").split() == ["one", "two"]
    assert told(kernel, "x = !echo three\nprint(x)") == "['three']\n"
    assert told(kernel, "!echo four | cat").strip() == "four"
    assert told(kernel, "!exit 3\nprint(_exit_code)") == "3\n"
    # Nobody can be asked where a command reads, so it is the interrupt that must reach it.
    msg_id = kernel.client.execute("!echo reading; cat")
    wait_for(kernel, msg_id, lambda m: m["msg_type"] == "stream" and "reading" in m["content"]["text"])
    kernel.manager.interrupt_kernel()
    reply, _ = kernel.collect(msg_id)
    assert told(kernel, "print('still here')") == "still here\n"


def wait_for(kernel, msg_id, seen, timeout=60):
    deadline = time.monotonic() + timeout
    while True:
        message = kernel.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
        if message["parent_header"].get("msg_id") == msg_id and seen(message):
            return message


# Variables


@pytest.fixture
def forwarding(user):
    user.env |= {"COLAB_KERNEL_FORWARD_ENV": "HF_TOKEN,OTHER,NOT_SET", "HF_TOKEN": SECRET, "OTHER": "another value of mine"}
    return user


def test_forwarded_variables_are_in_the_session_and_are_its_secrets(forwarding, kernels):
    kernel = kernels(forwarding)
    assert told(kernel, f"import os\nprint(os.environ['HF_TOKEN'] == {SPELT}, len(os.environ['OTHER']))") == "True 21\n"
    assert told(kernel, "print('NOT_SET' in os.environ)") == "False\n"
    assert told(kernel, f"from google.colab import userdata\nprint(userdata.get('HF_TOKEN') == {SPELT})") == "True\n"
    assert told(kernel, "import subprocess\nprint(len(subprocess.check_output(['printenv', 'OTHER'])))") == "22\n"
    # A restart is another kernel on Colab.
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=30)
    assert told(kernel, f"import os\nprint(os.environ['HF_TOKEN'] == {SPELT})") == "True\n"


def test_forwarded_values_are_written_down_nowhere(forwarding, kernels):
    kernel = kernels(forwarding)
    used = f"import os\nfrom google.colab import userdata\nprint(userdata.get('HF_TOKEN') == os.environ['HF_TOKEN'] == {SPELT})"
    assert told(kernel, used) == "True\n"
    # There, what has run; the journal, which is asked for by reading the memory of the bootstrap; the file system.
    look = f"""
needle = {SPELT}[:43]
hm = get_ipython().history_manager
found = [cell for cell in list(In) + list(hm.input_hist_raw) if needle in cell]
found += [line for line in hm.search(f'*{{needle}}*')]
import glob
found += [path for path in glob.glob('/proc/[0-9]*/cmdline') if needle.encode() in open(path, 'rb').read()]
for folder, _, files in os.walk(os.environ['HOME']):
    for name in files:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and needle.encode() in open(path, 'rb').read():
            found.append(path)
journal = get_ipython().kernel._colab_kernel_companion.journal
found += [n for n, (_, frames) in journal.items() if any(needle.encode() in frame for frame in frames)]
print(found)
"""
    assert told(kernel, look) == "[]\n"
    # Here: history, log, state, and what any user of the machine can list.
    history = kernel.client.history(hist_access_type="tail", n=100, raw=True, output=True, reply=True, timeout=30)
    needle = SECRET[:43]
    assert needle not in json.dumps(history["content"])
    logs = list(Path(forwarding.env["COLAB_KERNEL_STATE_DIR"]).rglob("kernel-*.log"))
    assert logs and any("execute_code" in log.read_text(errors="replace") for log in logs)
    for path in forwarding.directory.rglob("*"):
        assert not path.is_file() or needle.encode() not in path.read_bytes(), path
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            assert needle.encode() not in Path(path).read_bytes(), path
        except OSError:
            pass  # ended in between


def test_a_notebook_that_uses_forwarded_variables_does_not_hold_them(forwarding, tmp_path):
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": "import os; len(os.environ['HF_TOKEN'])"}
    kernelspec = {"name": "colab", "display_name": "Colab (remote)", "language": "python"}
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": [cell], "metadata": {"kernelspec": kernelspec}, "nbformat": 4, "nbformat_minor": 4}))
    done = forwarding.jupyter("nbconvert", "--to", "notebook", "--execute", "--inplace", path)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert f'"{len(SECRET)}"' in text
    for words in (text, done.stdout, done.stderr):
        assert SECRET[:43] not in words


def test_variables_go_nowhere_without_the_companion(forwarding, kernels):
    forwarding.env["COLAB_KERNEL_COMPANION"] = "off"
    kernel = kernels(forwarding)
    assert told(kernel, "import os\nprint('HF_TOKEN' in os.environ)") == "False\n"
    assert os.environ.get("HF_TOKEN") != SECRET
