"""The kernel of a Colab runtime: IPython's, with the differences that Colab's own has.

They are those that a client can see: what inspection and a failed completion answer, the questions that `google.colab` asks the
web page (`colab_request` on iopub, answered by an `input_reply` on stdin), and shell commands that announce their input.
"""

import base64
import codecs
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
import types

# As with `-m ipykernel_launcher`: the directory of this file is not for users' imports.
del sys.path[0]

import zmq
from IPython.display import HTML, Javascript, display
from IPython.utils.text import SList
from IPython.utils.tokenutil import token_at_cursor
from ipykernel.ipkernel import IPythonKernel
from ipykernel.jsonutil import json_clean
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell

try:
    import pty
    import termios
except ImportError:  # not on Windows
    pty = None

POLL = 0.025
numbers = itertools.count(1)


def module(name, **members):
    """A module of `google.colab`, made of what is defined here."""
    made = types.ModuleType(name)
    for key, member in members.items():
        if isinstance(member, (type, types.FunctionType)):
            member.__module__ = name
            member.__name__ = member.__qualname__ = key
        setattr(made, key, member)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    setattr(sys.modules[parent], last, made)


def kernel():
    return IPKernelApp.instance().kernel


# Questions to the web page


class MessageError(Exception):
    """The page answered with an error."""


def send_request(kind, body, number=None):
    metadata = {"colab_request_type": kind}
    if number is not None:
        metadata["colab_msg_id"] = number
    k = kernel()
    k.session.send(k.iopub_socket, "colab_request", {"request": body}, parent=k.get_parent("shell"), metadata=metadata)


def next_input():
    """The value of the next reply on stdin, None if there is none. What is no message counts as none."""
    k = kernel()
    try:
        _, reply = k.session.recv(k.stdin_socket, zmq.NOBLOCK)
        return reply["content"]["value"] if reply else None
    except Exception:
        return None


def blocking_request(kind, request="", timeout_sec=5, parent=None):
    """The answer's data; None when there is no answer in time."""
    number = next(numbers)
    send_request(kind, request, number)
    # By its module, as in Google's package: who replaces it there replaces it for every helper.
    return sys.modules["google.colab._message"].read_reply_from_input(number, timeout_sec)


def read_reply_from_input(number, timeout_sec=None):
    deadline = None if timeout_sec is None else time.monotonic() + timeout_sec
    while deadline is None or time.monotonic() < deadline:
        value = next_input()
        if value is None:
            time.sleep(POLL)
        elif isinstance(value, dict) and value.get("type") == "colab_reply" and value.get("colab_msg_id") == number:
            if "error" in value:
                raise MessageError(value["error"])
            return value.get("data")
    return None


# userdata, output, files, auth, drive


class SecretNotFoundError(Exception):
    def __init__(self, key):
        super().__init__(f"There is no secret {key}.")


class NotebookAccessError(Exception):
    def __init__(self, key):
        super().__init__(f"This notebook may not read the secret {key}.")


class TimeoutException(Exception):
    def __init__(self, key):
        super().__init__(f"No answer about the secret {key}: only the notebook's web page gives one.")


def get_secret(key):
    answer = blocking_request("GetSecret", {"key": key}, timeout_sec=10)
    if answer is None:
        raise TimeoutException(key)
    if not answer.get("exists"):
        raise SecretNotFoundError(key)
    if not answer.get("access"):
        raise NotebookAccessError(key)
    return answer.get("payload", "")


def eval_js(script, ignore_result=False, timeout_sec=None):
    if ignore_result:
        return send_request("cell_javascript_eval", {"script": script})
    return blocking_request("cell_javascript_eval", {"script": script}, timeout_sec=timeout_sec)


def upload():
    place = f"files-{next(numbers)}"
    display(HTML(f'<input type="file" id="{place}" multiple disabled><output>This works on the notebook\'s web page only.</output>'))
    files = {}
    step = eval_js(f"google.colab._files._uploadFiles({json.dumps(place)})")
    while step["action"] != "complete":
        if step["action"] == "append":
            files[step["file"]] = files.get(step["file"], b"") + base64.b64decode(step["data"])
        step = eval_js(f"google.colab._files._uploadFilesContinue({json.dumps(place)})")
    for name, data in files.items():
        with open(name, "wb") as file:
            file.write(data)
    return files


def download(filename):
    """Shows a script that fetches the file over a comm; waits for nothing."""
    if not os.path.exists(filename):
        raise FileNotFoundError(f"There is no file {filename}")
    comms, target = kernel().comm_manager, f"download_{next(numbers)}"

    def opened(comm, _):
        file = open(filename, "rb")

        def asked(_):
            if piece := file.read(1 << 20):
                comm.send({}, buffers=[piece])
            else:
                comm.close()
                file.close()
                comms.unregister_target(target, opened)

        comm.on_msg(asked)

    comms.register_target(target, opened)
    display(Javascript("/* fetches a file over a comm and saves it */"))
    arguments = map(json.dumps, (target, os.path.basename(filename), os.path.getsize(filename)))
    display(Javascript(f"download({', '.join(arguments)})"))


def authenticate_user(clear_output=True):
    blocking_request("request_auth", {"authType": "auth_user_ephemeral"}, timeout_sec=None)


def mount(mountpoint, force_remount=False, timeout_ms=120000, readonly=False):
    raise NotImplementedError("google.colab.drive does not work in this environment.")


def install_google_colab():
    try:
        import google
    except ImportError:
        google = sys.modules["google"] = types.ModuleType("google")
        google.__path__ = []
    module("google.colab")
    sys.modules["google.colab"].__path__ = []
    module("google.colab._message", MessageError=MessageError, blocking_request=blocking_request,
           read_reply_from_input=read_reply_from_input, send_request=send_request)  # fmt: skip
    module("google.colab.auth", authenticate_user=authenticate_user)
    module("google.colab.drive", mount=mount)
    module("google.colab.files", download=download, upload=upload)
    module("google.colab.output", eval_js=eval_js)
    module("google.colab.userdata", NotebookAccessError=NotebookAccessError, SecretNotFoundError=SecretNotFoundError,
           TimeoutException=TimeoutException, get=get_secret)  # fmt: skip


# Shell commands


def run_command(command, out):
    """Runs a command on a terminal whose input is what comes on the stdin channel; its output and its exit code."""
    ours, theirs = pty.openpty()
    settings = termios.tcgetattr(theirs)
    settings[1] &= ~termios.ONLCR
    settings[3] &= ~termios.ECHOCTL
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    send_request("cell_display_stdin", {"delayMillis": 500})
    shell = "/bin/bash" if os.path.exists("/bin/bash") else None
    process = subprocess.Popen(command, shell=True, executable=shell, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    send_request("cell_update_stdin", {"echo": True})
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    said = []
    while True:
        try:
            ended = process.poll() is not None
            if select.select([ours], [], [], POLL)[0]:
                try:
                    piece = os.read(ours, 1 << 16)
                except OSError:  # nobody is at the other end any more
                    break
                said.append(decoder.decode(piece))
                out(said[-1])
            elif ended:
                break
            if isinstance(value := next_input(), str):
                os.write(ours, value.encode())
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
    os.close(ours)
    send_request("cell_remove_stdin", {})
    return "".join(said), process.wait()


class Shell(ZMQInteractiveShell):
    def system(self, cmd):
        if pty is None:
            return super().system(cmd)
        _, code = run_command(self.var_expand(cmd, depth=1), sys.stdout.write)
        if code == -signal.SIGINT:
            print("^C")
        self.user_ns["_exit_code"] = code

    def getoutput(self, cmd, split=True, depth=0):
        if pty is None:
            return super().getoutput(cmd, split, depth + 1)
        said, _ = run_command(self.var_expand(cmd, depth=depth + 1), lambda text: None)
        return SList(said.splitlines()) if split else said


class Kernel(IPythonKernel):
    shell_class = Shell

    def do_inspect(self, code, cursor_pos, detail_level=0, omit_sections=()):
        info = self.shell.object_inspect(token_at_cursor(code, cursor_pos), detail_level=detail_level)
        found = bool(info["found"])
        # What is no JSON in there (defaults of arguments, say) is shown as Python shows it.
        data = {"application/json": json.loads(json.dumps(info, default=repr))} if found else {}
        return {"status": "ok", "found": found, "data": data, "metadata": {}}

    async def complete_request(self, *arguments):
        *_, stream, ident, parent = arguments
        content = parent["content"]
        try:
            matches = json_clean(self.do_complete(content["code"], content["cursor_pos"]))
        except Exception:
            # The content is a string, twice encoded.
            matches = json.dumps('{"status":"ok"}')
        self.session.send(stream, "complete_reply", matches, parent, ident)


install_google_colab()
IPKernelApp.launch_instance(kernel_class=Kernel)
