"""What the companion installs in a session's kernel, so that nothing the kernel publishes is lost.

Run in a namespace of its own by one silent request, with a call of `install` at its end; a second run changes nothing. Then
* every message on iopub has `"ck": {"n", "journal"}` in its metadata, and the journal keeps the bytes that went out;
* `ck_*_request`s on the control channel read the journal, also while a cell runs, and each of them is answered;
* a table tells which executions began, which ended and how, even when their messages have left the journal;
* `execute_reply`, which only the requester gets, is repeated on iopub as `ck_execute_reply`;
* `input()` and `getpass()` ask by `ck_input_request` on iopub until somebody answers by its key.
Messages of ours have our own request as parent and name the cell in their content, for the service reads iopub as well.
"""

import contextlib
import functools
import hashlib
import json
import os
import signal
import sys
import threading
import time
import types

from IPython import get_ipython
from IPython.core.error import StdinNotImplementedError
from jupyter_client.session import DELIM, extract_header

MARK = "_colab_kernel_companion"  # the kernel's attribute that holds what is installed


def install(count=1, limit=64 << 20, marker=None):
    """Returns the journal's id. `count` is the notebook's next number, `limit` the journal's size in bytes; counted cells that
    contain `marker` are ours and not the user's. Where the user has run one, the kernel's counter stands."""
    shell = get_ipython()
    companion = getattr(shell.kernel, MARK, None) or Companion(shell.kernel)
    setattr(shell.kernel, MARK, companion)
    companion.attach(limit)
    cells = shell.history_manager.input_hist_raw[1:]
    if all(marker is not None and marker in cell for cell in cells):
        if cells:  # a counter that goes back within one history session makes IPython complain in the user's first cell
            shell.history_manager.reset()
        shell.execution_count = count
    return companion.id


class Companion:
    def __init__(self, kernel):
        self.kernel, self.session, self.owner, self.id = kernel, kernel.session, os.getpid(), os.urandom(16).hex()
        self.parent = extract_header(kernel.get_parent("shell"))
        # Guards the journal and the table, and is never held across a send: the IO thread's event pipe is bounded, so a sender
        # may have to wait for that thread, which must not wait for the sender. Re-entrant for finalisers that print.
        self.lock, self.active, self.faults = threading.RLock(), False, 0
        self.journal, self.first, self.last, self.bytes, self.limit = {}, 1, 0, 0, 0
        self.requests, self.inputs, self.answers = {}, {}, {}
        self.wrappers = [(kernel.iopub_thread, "_really_send", self.really_send), (kernel.session, "send", self.send)]
        self.wrappers += [(kernel, name, functools.partial(self.ask, name)) for name in ("raw_input", "getpass")]
        self.native = {name: getattr(owner, name, None) for owner, name, _ in self.wrappers}
        requests = (self.status, self.replay, self.ack, self.answer, self.environ, self.uninstall)
        self.handlers = {f"ck_{answer.__name__}_request": functools.partial(self.handle, answer) for answer in requests}

    def attach(self, limit):
        """Puts the wrappers in place. Every step can be repeated, so the next install mends one that was interrupted."""
        for owner, name, wrapper in self.wrappers:
            with contextlib.suppress(AttributeError):
                setattr(owner, name, wrapper)
        # The IO thread alone knows the order of the wire, and no interrupt is raised there. Second best is `session.send`: where
        # threads race, numbers may then differ from the wire's order, and forked children's output has none.
        wrapped = getattr(self.kernel.iopub_thread, "_really_send", None) == self.really_send
        self.numbering = "thread" if wrapped and self.native["_really_send"] else "send"
        self.kernel.control_handlers.update(self.handlers)
        self.active, self.limit = True, limit

    def uninstall(self, content):
        """Takes everything out. A wrapper that somebody has wrapped since then stays, and passes everything on."""
        self.active = False
        for owner, name, wrapper in self.wrappers:
            if getattr(owner, name, None) == wrapper:
                setattr(owner, name, self.native[name])
        for name in self.handlers:
            self.kernel.control_handlers.pop(name, None)
        setattr(self.kernel, MARK, None)
        return {}, []

    def really_send(self, message, *args, **kwargs):
        return self.native["_really_send"](self.number(message), *args, **kwargs)

    def send(self, stream, msg_or_type, content=None, parent=None, *args, **kwargs):
        if self.active and os.getpid() == self.owner:
            if msg_or_type == "execute_reply":
                # The cell is over, so there is nothing left to interrupt, and its reply must go out.
                with contextlib.suppress(Exception, KeyboardInterrupt):
                    asked, header = parent["content"], parent["header"]
                    ran = {"cell": header["msg_id"], "session": header["session"], "code": digest(asked["code"]), "reply": content}
                    if not asked.get("silent"):
                        self.session.send(self.kernel.iopub_socket, "ck_execute_reply", ran, parent=self.parent)
            if self.numbering == "send" and stream and stream in (self.kernel.iopub_socket, self.kernel.iopub_thread):
                real = stream
                stream = types.SimpleNamespace(send_multipart=lambda m, *a, **k: real.send_multipart(self.number(m), *a, **k))
        return self.native["send"](stream, msg_or_type, content, parent, *args, **kwargs)

    def number(self, message):
        """The message with its number, in the journal; as it was where that fails, for output matters more than its number."""
        # A forked child sends to this process, which numbers. The child's copy of the lock may be held for ever.
        if not self.active or os.getpid() != self.owner:
            return message
        try:
            at = message.index(DELIM)
            # Header, parent, metadata, content and buffers, copied as they lie in memory: the sender may go on to change them.
            frames = [frame if isinstance(frame, bytes) else memoryview(frame).tobytes("A") for frame in message[at + 2 :]]
            size = sum(map(len, frames)) + 512  # with about what Python needs beside the bytes
            head = frames[2][: frames[2].rindex(b"}")]  # fails where messages are not packed as JSON
            with self.lock:
                n = self.last + 1
                head += b'"ck":' if head.strip() == b"{" else b',"ck":'  # behind the user's own, should there be one
                frames[2] = head + b'{"n":%d,"journal":"%s"}}' % (n, self.id.encode())
                self.journal[n] = size, frames
                self.last = n
                self.bytes += size
                while self.bytes > self.limit and self.first < n:
                    self.drop()
                message = [*message[:at], DELIM, self.session.sign(frames[:4]), *frames]
                self.note(n, frames)
        except Exception:
            self.faults += 1
        return message

    def drop(self):
        self.bytes -= self.journal.pop(self.first)[0]
        self.first += 1

    def note(self, n, frames):
        """Keeps the table of the latest 200 executions; most messages do not concern it and are not parsed. What ended without a
        status had no reply: ipykernel sends none when an interrupt comes between a cell's code and its reply."""
        if not any(kind in frames[0] for kind in (b"execute_input", b"ck_execute_reply")) and b'"idle"' not in frames[3][:40]:
            return
        header, parent, content = (json.loads(frames[i].decode("utf-8", "surrogateescape")) for i in (0, 1, 3))
        kind, cell = header["msg_type"], content.get("cell", parent.get("msg_id"))
        if kind == "execute_input":
            content.update(session=parent["session"], code=digest(content["code"]))
        if kind == "execute_input" or kind == "ck_execute_reply" and cell not in self.requests:  # which was aborted
            entry = {"cell": cell, **{key: content[key] for key in ("session", "code")}, "count": content.get("execution_count")}
            self.requests[cell] = {**entry, "first": n, "last": None, "status": None, "ename": None}
            for oldest in list(self.requests)[:-200]:
                del self.requests[oldest]
        if kind == "ck_execute_reply":
            self.requests[cell].update(status=content["reply"]["status"], ename=content["reply"].get("ename"))
        elif kind == "status" and content["execution_state"] == "idle" and cell in self.requests:
            self.requests[cell]["last"] = n

    def handle(self, answer, stream, ident, request):
        """Answers a request on the control channel, whatever is wrong with it."""
        kind = f"ck_{answer.__name__}_reply"
        try:
            content = request["content"]
            if content.get("journal", self.id) != self.id:
                raise ValueError("another journal")
            with self.lock:
                while self.first <= min(whole(content, "ack", 0), self.last):
                    self.drop()
                reply, buffers = answer(content)
                reply = {"status": "ok", "journal": self.id, "first": self.first, "last": self.last, **reply}
            self.session.send(stream, kind, reply, request, ident, buffers)
        except Exception as error:
            reply = {"status": "error", "ename": type(error).__name__, "evalue": ascii(error), "traceback": []}
            self.session.send(stream, kind, {**reply, "journal": self.id}, request, ident)

    def ack(self, content):
        return {"acknowledged": whole(content, "ack")}, []

    def environ(self, content):
        return os.environ.update(content["variables"]) or {}, []

    def status(self, content):
        """With the table's entries that had not ended before the number `since`."""
        since = whole(content, "since", 0)
        table = [dict(entry) for entry in self.requests.values() if entry["last"] is None or entry["last"] >= since]
        health = {"numbering": self.numbering, "faults": self.faults, "bytes": self.bytes, "limit": self.limit}
        return {"version": 1, **health, "inputs": list(self.inputs.values()), "requests": table}, []

    def replay(self, content):
        """The messages from `from` to `to`, up to `limit` bytes; the first in any case, or with `length` a piece of it."""
        start, end, budget = whole(content, "from"), whole(content, "to", self.last), whole(content, "limit", 1 << 20)
        if "length" in content:
            offset, length, frames = whole(content, "offset", 0), whole(content, "length"), self.journal[start][1]
            return {"n": start, "sizes": list(map(len, frames))}, [b"".join(frames)[offset : offset + length]]
        index, buffers = [], []
        for n in range(max(start, self.first), min(end, self.last) + 1):
            size, frames = self.journal[n]
            if index and size > budget:
                break
            budget -= size
            index.append([n, len(frames)])
            buffers += frames
        return {"messages": index}, buffers

    def answer(self, content):
        """To a prompt: `value` or `refused` (texts), `eof` or `native` (true; the latter: as the kernel does it without us)."""
        right = {"value": str, "refused": str, "eof": bool, "native": bool}
        if [type(content[way]) is kind and content[way] is not False for way, kind in right.items() if way in content] != [True]:
            raise ValueError("an answer has either value, refused, eof or native")
        return {"taken": content["key"] in self.inputs and self.answers.setdefault(content["key"], content) is content}, []

    def ask(self, name, prompt="", *args, **kwargs):
        """In place of the kernel's `raw_input` and `getpass`, which ask on stdin and only where the request allows it."""
        cell, key = extract_header(self.kernel.get_parent("shell")).get("msg_id"), os.urandom(16).hex()
        question = {"key": key, "cell": cell, "prompt": str(prompt), "password": name == "getpass"}
        main = threading.current_thread() is threading.main_thread()
        # In a cell with top-level await SIGINT goes to the event loop, which stands still here.
        handler = signal.getsignal(signal.SIGINT) if main else None
        awaiting = "_cancel_on_sigint" in getattr(handler, "__qualname__", "")
        pause, due, answer = 1, 0, {}
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            if awaiting:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self.inputs[key] = question
            while self.active and os.getpid() == self.owner and "native" not in answer:
                if time.monotonic() >= due:
                    self.session.send(self.kernel.iopub_socket, "ck_input_request", question, parent=self.parent)
                    due, pause = time.monotonic() + pause, min(2 * pause, 30)  # each takes room in the journal
                if not main:
                    time.sleep(0.01)  # two threads cannot share the socket; the answer comes on the control channel
                elif self.kernel.stdin_socket.poll(10):
                    with contextlib.suppress(Exception):  # what else arrives there answers nothing
                        self.answer(self.session.recv(self.kernel.stdin_socket)[1]["content"]["value"])
                answer = self.answers.get(key, answer)
                if "value" in answer:
                    return answer["value"]
                if "eof" in answer or "refused" in answer:
                    raise EOFError if "eof" in answer else StdinNotImplementedError(answer["refused"])
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Interrupted by user") from None
        finally:
            self.inputs.pop(key, None)
            self.answers.pop(key, None)
            if awaiting:
                signal.signal(signal.SIGINT, handler)
        return self.native[name](prompt, *args, **kwargs)


def digest(code):
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


def whole(content, name, *default):
    value = content.get(name, *default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number")
    return value
