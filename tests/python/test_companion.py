"""Nothing lost, nothing twice, nothing of others: the companion under rate limits, cuts, silence and company.

`COLAB_KERNEL_CUT_POINTS` says at how many random points the connection is cut (10), `COLAB_KERNEL_SEED` repeats a choice; the
seed is part of the tests' names. `COLAB_KERNEL_TEST_ALL` adds what a few minutes do not allow. `COLAB_KERNEL_TEST_KERNEL=reference`
puts ipykernel in the place of the kernel and leaves the faults out, to try what the tests expect.
"""

import ast
import base64
import json
import os
import random
import re
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyter_client import BlockingKernelClient

import compare
import reference
from conftest import Emulator

KERNEL = os.environ.get("COLAB_KERNEL_TEST_KERNEL", "colab")
SEED = int(os.environ.get("COLAB_KERNEL_SEED") or 1053)
NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))
BY_NAME = {path.stem: path for path in NOTEBOOKS}
IMPORTS = "import time\nfrom IPython.display import HTML, display"

# What differs little from a test that always runs is for runs by hand.
long = pytest.mark.skipif(not os.environ.get("COLAB_KERNEL_TEST_ALL"), reason="COLAB_KERNEL_TEST_ALL is not set")
only_colab = pytest.mark.skipif(KERNEL != "colab", reason="about the service, which ipykernel has not")


def points():
    """Where to cut: after how many messages of each connection, in which notebook, on which stack."""
    choice = random.Random(SEED)
    books = []
    for i in range(int(os.environ.get("COLAB_KERNEL_CUT_POINTS") or 10)):
        if not books:
            books = choice.sample(NOTEBOOKS, len(NOTEBOOKS))
        # Small numbers as likely as large ones: a cut in the first replies is another case than one in a long print.
        # Below seven no connection lives to bring an answer: the server's own questions to the kernel come first.
        yield round(7 * 12 ** choice.random()), books.pop(), reference.STACKS[i % len(reference.STACKS)]


def counters(emulator):
    """How often the emulator's faults have fired."""
    with urllib.request.urlopen(f"{emulator.endpoint.removesuffix('/mcp')}/emulator/counters", timeout=30) as response:
        return json.load(response)


def both(notebook, stack, front, prefix, directory):
    """A notebook on the kernel and on ipykernel of the same version."""
    kernels, env = reference.install(stack, directory / "theirs")
    content = str(directory / "theirs" / "root" / "content")
    theirs = compare.run(notebook, compare.Side("reference", [kernels], env, content))
    ours = compare.run(notebook, compare.Side("colab", [prefix / "share" / "jupyter" / "kernels"], front.env))
    return ours, theirs


@dataclass
class Remote:
    """A kernel on an emulator of its own."""

    kernel: object
    emulator: object
    front: object

    def run(self, code, timeout=240):
        return self.kernel.run(code, timeout)

    def fired(self, name):
        """Asserts that a fault has happened: one that has not proves nothing."""
        assert KERNEL != "colab" or counters(self.emulator)[name] > 0, f"the emulator has {name} nothing"


@pytest.fixture
def remote(emulator_with, front_for, kernels, tmp_path):
    def start(*quirks, stack="colab"):
        if KERNEL == "reference":
            specs, env = reference.install(stack, tmp_path / "reference")
            front = SimpleNamespace(env=env | {"JUPYTER_PATH": str(specs.parent)}, kernel="reference")
            return Remote(kernels(front), None, front)
        emulator = emulator_with(f"kernels={stack}", *quirks)
        front = front_for(emulator)
        return Remote(kernels(front), emulator, front)

    return start


def outputs(messages):
    """What a cell shows in the end: texts joined, what was cleared left out, displays as they are after their updates."""
    shown, clearing = [], False
    for _, message in messages:
        kind, content = message["msg_type"], message["content"]
        if kind == "clear_output":
            if content.get("wait"):
                clearing = True
            else:
                shown.clear()
            continue
        if kind == "update_display_data":
            for one in shown:
                if one.get("id") and one["id"] == content["transient"]["display_id"]:
                    one["data"] = content["data"]
            continue
        if kind not in ("stream", "display_data", "execute_result", "error"):
            continue
        if clearing:
            shown.clear()
            clearing = False
        if kind == "stream":
            if shown and shown[-1]["kind"] == content["name"]:
                shown[-1]["text"] += content["text"]
            else:
                shown.append({"kind": content["name"], "text": content["text"]})
        elif kind == "error":
            shown.append({"kind": kind, "ename": content["ename"], "evalue": content["evalue"]})
        else:
            shown.append({"kind": kind, "data": content["data"], "id": content.get("transient", {}).get("display_id")})
    return shown


def text(messages, name="stdout"):
    return "".join(m["content"]["text"] for _, m in messages if m["msg_type"] == "stream" and m["content"]["name"] == name)


def displayed(messages):
    return [one["data"] for one in outputs(messages) if one["kind"] == "display_data"]


def ended(reply, messages, status="ok"):
    """Asserts what holds for every cell, whatever has happened to the connection."""
    assert reply["content"]["status"] == status, reply["content"]
    states = [m["content"]["execution_state"] for _, m in messages if m["msg_type"] == "status"]
    assert states == ["busy", "idle"]
    assert [m["msg_type"] for _, m in messages].count("execute_input") == 1
    assert messages[-1][1]["msg_type"] == "status"


# Cuts


SIZES = [500_000, 1_200_000, 20_000_000]
FLOOD = f"""{IMPORTS}
import matplotlib.pyplot as plt
for part, size in enumerate({SIZES}):
    for i in range(size // 100):
        print(f'{{part}}-{{i:097d}}')
    plt.figure(figsize=(part + 1, 1))
    plt.plot([1, 3, 2])
    plt.show()
    display(HTML(f'<b>after part {{part}}</b>'))
"""


def assert_flood(reply, messages):
    ended(reply, messages)
    shown = outputs(messages)
    assert [one["kind"] for one in shown] == ["stdout", "display_data", "display_data"] * len(SIZES)
    for part, size in enumerate(SIZES):
        printed, figure, html = shown[3 * part : 3 * part + 3]
        expected = "".join(f"{part}-{i:097d}\n" for i in range(size // 100))
        # Not `==` in the assertion: a report of 20 MB helps nobody.
        at = len(os.path.commonprefix([printed["text"], expected])) if printed["text"] != expected else None
        assert at is None, f"part {part} differs at {at} of {len(printed['text'])} and {len(expected)} characters"
        assert figure["data"]["image/png"].startswith("iVBOR")
        assert html["data"]["text/html"] == f"<b>after part {part}</b>"
    figures = [one["data"]["image/png"] for one in shown[1::3]]
    assert len(set(figures)) == len(SIZES)


@pytest.mark.parametrize(
    ("after", "notebook", "stack"),
    [pytest.param(*point, id=f"seed {SEED}, after {point[0]}, {point[1].stem}, {point[2]}") for point in points()],
)
def test_every_output_arrives_once_and_in_order_when_the_companion_is_cut(after, notebook, stack, remote, prefix, tmp_path):
    remote = remote(f"companion=cut:{after}", stack=stack)
    if KERNEL == "colab":
        assert compare.differences(*both(notebook, stack, remote.front, prefix, tmp_path)) == []
    assert_flood(*remote.run(FLOOD))
    reply, messages = remote.run("1 / 0")
    ended(reply, messages, "error")
    assert [one["kind"] for one in outputs(messages)] == ["error"]
    remote.fired("cut")


@pytest.mark.parametrize(
    ("stack", "quirks"),
    [
        ("colab", ()),
        ("newest", ("server=gateway",)),
        pytest.param("newest", (), marks=long),
        pytest.param("colab", ("server=gateway",), marks=long),
        *(pytest.param(stack, (quirk,), marks=long) for stack in reference.STACKS for quirk in ("channels=default", "limits=off")),
    ],
    ids=lambda value: value if isinstance(value, str) else "".join(value) or "defaults",
)
def test_a_flood_passes_the_default_rate_limits_of_every_server(quirks, stack, remote):
    assert_flood(*remote(*quirks, stack=stack).run(FLOOD))


@only_colab
@pytest.mark.parametrize(
    "quirks",
    [
        ("server=gateway", "channels=default"),
        ("channels=default",),
        ("code=rewritten",),
        ("unknown-iopub=fail",),
        ("sessions=hidden",),
        ("service-session=fresh",),
    ],
    ids=", ".join,
)
def test_displays_are_those_of_ipykernel_whatever_is_unknown_of_the_service(quirks, remote, prefix, tmp_path):
    remote = remote(*quirks)
    assert compare.differences(*both(BY_NAME["displays"], "colab", remote.front, prefix, tmp_path)) == []


# No companion at all


# What execute_code does not report, and what depends on numbers that helper runs take there.
# An Output widget captures nothing there; where the reply and the shown error say different things, execute_code has one of them.
BEYOND_TEXT = re.compile(
    r"update|clear_output|display_id|ProgressBar|Out\[|widget_tqdm|trange|\b_ \+|handle|widgets\.Output|not_a_|Failing\(\)|Half\(\)"
)


def rough(cells):
    """What is left of a notebook's outputs without the companion."""
    kept = []
    for cell in compare.normal(cells):
        if BEYOND_TEXT.search(cell.source):
            continue
        streams = {"stdout": "", "stderr": ""}
        rich, errors = [], []
        for output in cell.outputs:
            if output["output_type"] == "stream":
                streams[output["name"]] += output["text"]
            elif output["output_type"] == "error":
                errors.append([output["ename"], output["evalue"], re.sub(r"In ?\[\d+\]", "In […]", "\n".join(output["traceback"]))])
            elif output["output_type"] == "execute_result" or set(output["data"]) != {"text/plain"}:
                rich.append([output["output_type"], output["data"]])
        # How a value and the figures behind it follow each other is not told; displays of mere text are not reported.
        rich.sort(key=json.dumps)
        kept.append({"source": cell.source, "status": cell.reply["status"], "streams": streams, "rich": rich, "errors": errors})
    return kept


@pytest.fixture(scope="module", params=["colab", pytest.param("newest", marks=long)])
def blocked(request):
    emulator = Emulator(f"kernels={request.param}", "companion=blocked")
    emulator.stack = request.param
    yield emulator
    emulator.stop()


@only_colab
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_texts_statuses_results_errors_and_bundles_arrive_without_a_companion(notebook, blocked, front_for, prefix, tmp_path):
    refused = counters(blocked)["blocked"]
    ours, theirs = both(notebook, blocked.stack, front_for(blocked), prefix, tmp_path)
    found = [line for pair in zip(rough(ours), rough(theirs), strict=True) for line in compare.difference(pair[1]["source"], *pair)]
    assert found == []
    assert counters(blocked)["blocked"] > refused


# What floods, and what cannot be packed


COMMS = f"""{IMPORTS}
try:
    from comm import create_comm
except ImportError:
    from ipykernel.comm import Comm as create_comm
channel = create_comm(target_name='flood', data={{}})
for i in range(COUNT):
    channel.send({{'i': i}})
    if i % 1000 == 0:
        print('at', i, flush=True)
print('end')
"""


@pytest.mark.parametrize("stack", reference.STACKS)
def test_sixty_thousand_comm_messages_arrive_in_order_between_prints(stack, remote):
    count = 60_000 if KERNEL == "colab" else 600  # a plain ipykernel's socket drops what is above a thousand
    remote = remote(stack=stack)
    # The notices of a starting session are none of the cell's output.
    remote.run("'ready'")
    reply, messages = remote.run(COMMS.replace("COUNT", str(count)))
    ended(reply, messages)
    assert text(messages) == "".join(f"at {i}\n" for i in range(0, count, 1000)) + "end\n"
    numbers = [m["content"]["data"]["i"] for _, m in messages if m["msg_type"] == "comm_msg"]
    assert numbers == list(range(count))
    places = [m["content"]["text"] if m["msg_type"] == "stream" else m["content"]["data"]["i"] for _, m in messages if m["msg_type"] in ("stream", "comm_msg")]
    assert places.index("at 0\n") <= 1, "a flushed print is shown where it was printed"
    reply, messages = remote.run("'alive'")
    ended(reply, messages)


EIGHT_THREADS = f"""{IMPORTS}
import threading

def show(thread):
    for i in range(50):
        display({{'text/plain': f'{{thread}} {{i}}'}}, raw=True)

threads = [threading.Thread(target=show, args=[n]) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('joined')
"""


@pytest.mark.parametrize("stack", reference.STACKS)
def test_displays_of_eight_threads_arrive_once_and_each_thread_in_order(stack, remote):
    remote = remote(stack=stack)
    for _ in range(3):
        reply, messages = remote.run(EIGHT_THREADS)
        ended(reply, messages)
        shown = [tuple(map(int, data["text/plain"].split())) for data in displayed(messages)]
        assert len(shown) == 400
        for thread in range(8):
            assert [i for n, i in shown if n == thread] == list(range(50))
        assert text(messages) == "joined\n"


UNPACKABLE = {
    "a lone surrogate printed": "print('\\ud800')",
    "a lone surrogate displayed": f"{IMPORTS}\ndisplay({{'text/plain': '\\ud800'}}, raw=True)",
    "an object displayed": f"{IMPORTS}\ndisplay({{'text/plain': object()}}, raw=True)",
    "not a number displayed": f"{IMPORTS}\ndisplay({{'application/json': float('nan'), 'text/plain': 'x'}}, raw=True)",
    "a lone surrogate raised": "raise ValueError('\\ud800')",
    "a lone surrogate as result": "'\\ud800'",
}


@pytest.mark.parametrize("stack", reference.STACKS)
def test_what_cannot_be_packed_ends_its_cell_and_harms_no_other(stack, remote):
    remote = remote(stack=stack)
    for count, (name, code) in enumerate(UNPACKABLE.items()):
        if KERNEL == "colab" or "surrogate" not in name:  # a plain ipykernel never answers the latter
            remote.run(code, timeout=60)
        reply, messages = remote.run(f"print('after', {count})\n{count}", timeout=60)
        ended(reply, messages)
        shown = outputs(messages)
        assert [one["kind"] for one in shown] == ["stdout", "execute_result"], name
        assert shown[0]["text"] == f"after {count}\n" and shown[1]["data"]["text/plain"] == str(count), name


# Silence


TICKING = "import time\nfor i in range(40):\n    print('tick', i, flush=True)\n    time.sleep(0.05)\nprint('ended at', time.time())"


@pytest.mark.parametrize(
    ("after", "stack"),
    [
        (12, "newest"),
        (35, "colab"),
        *(pytest.param(*case, marks=long) for case in ((12, "colab"), (20, "colab"), (20, "newest"), (35, "newest"))),
    ],
)
def test_a_cell_whose_end_was_swallowed_ends_complete_within_three_seconds(after, stack, remote):
    remote = remote(f"companion=swallow:{after}", stack=stack)
    reply, messages = remote.run(TICKING, timeout=60)
    seen = messages[-1][1]["header"]["date"].timestamp()
    ended(reply, messages)
    remote.fired("swallowed")
    lines = text(messages).splitlines()
    assert lines[:-1] == [f"tick {i}" for i in range(40)]
    assert seen - float(lines[-1].removeprefix("ended at ")) < 3
    reply, messages = remote.run("print('next')", timeout=60)
    ended(reply, messages)
    assert text(messages) == "next\n"


@pytest.mark.parametrize("after", [12, pytest.param(35, marks=long)])
def test_a_connection_that_passes_nothing_more_does_not_hold_a_cell(after, remote):
    remote = remote(f"companion=stall:{after}")
    reply, messages = remote.run(TICKING, timeout=120)
    ended(reply, messages)
    remote.fired("stalled")
    lines = text(messages).splitlines()
    assert lines[:-1] == [f"tick {i}" for i in range(40)] and lines[-1].startswith("ended at ")


# Whose output it is


@pytest.mark.parametrize("stack", ["colab", pytest.param("newest", marks=long)])
def test_no_output_of_an_interrupted_run_is_in_the_next_run_of_the_same_cell(stack, remote):
    remote = remote(stack=stack)
    remote.run("import time\nrun = 0")
    code = "run += 1\nfor i in range(40):\n    print(run, i, flush=True)\n    time.sleep(0.005)"
    client = remote.kernel.client
    for again in range(50):
        first = client.execute(code)
        messages = []
        while not any(m["msg_type"] == "stream" for _, m in messages):
            message = client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") == first:
                messages.append((time.monotonic(), message))
        remote.kernel.manager.interrupt_kernel()
        reply, more = remote.kernel.collect(first, 60)
        # A print may have been interrupted between its pieces.
        assert "".join(f"{2 * again + 1} {i}\n" for i in range(40)).startswith(text(messages + more))
        if reply["content"]["status"] == "error":  # else the interrupt came when the loop was over
            traceback = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(reply["content"]["traceback"]))
            # An interrupt inside ipykernel's own flush may come out of it as another error.
            in_flush = "KeyboardInterrupt" in traceback and "iostream.py" in traceback
            assert reply["content"]["ename"] == "KeyboardInterrupt" or in_flush, traceback
        reply, messages = remote.run(code, timeout=60)
        ended(reply, messages)
        assert text(messages).splitlines() == [f"{2 * again + 2} {i}" for i in range(40)]


@only_colab
@pytest.mark.parametrize("stack", reference.STACKS)
def test_a_foreign_client_that_runs_the_same_code_never_leaks_into_ours(stack, remote):
    remote = remote(stack=stack)
    _, messages = remote.run("turn = 0\nfrom ipykernel.connect import get_connection_file\nget_connection_file()")
    # The emulator's kernels run on this machine, and whoever can read the file may join.
    [result] = [one["data"]["text/plain"] for one in outputs(messages) if one["kind"] == "execute_result"]
    stranger = BlockingKernelClient(connection_file=ast.literal_eval(result))
    stranger.load_connection_file()
    stranger.start_channels()
    code = "turn += 1\nimport time\nfor i in range(20):\n    print(turn, i, flush=True)\n    time.sleep(0.01)"
    theirs = []

    def run_theirs():
        for _ in range(10):
            printed = []
            stranger.execute_interactive(code, output_hook=printed.append, timeout=60)
            theirs.append("".join(m["content"]["text"] for m in printed if m["msg_type"] == "stream"))

    stranger.wait_for_ready(timeout=30)
    thread = threading.Thread(target=run_theirs)
    thread.start()
    ours = []
    for _ in range(10):
        reply, messages = remote.run(code, timeout=60)
        ended(reply, messages)
        ours.append(text(messages))
    thread.join(timeout=60)
    stranger.stop_channels()
    assert not thread.is_alive()
    turns = []
    for printed in ours + theirs:
        turn = int(printed.split()[0])
        assert printed == "".join(f"{turn} {i}\n" for i in range(20))
        turns.append(turn)
    assert sorted(turns) == list(range(1, 21)), "each ran its own"
    assert turns[:10] == sorted(turns[:10])
    assert turns[:10] != list(range(turns[0], turns[0] + 10)), "they ran at the same time"


# A session's beginning


@pytest.mark.parametrize(
    ("stack", "quirks"), [("colab", ()), ("newest", ()), ("colab", ("sessions=hidden",)), ("newest", ("server=gateway",))], ids=str
)
def test_the_first_cell_shows_nothing_but_its_own_output_and_is_number_one(stack, quirks, remote):
    remote = remote(*quirks, stack=stack)
    client = remote.kernel.client
    # As an editor does at its start; without a session it is kept for later, and its output is nobody's.
    setup = client.execute("import os\nfrom_setup = 'set'\nprint('of the set-up')", store_history=False)
    remote.kernel.collect(setup, 60)
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nfrom_setup"
    reply, messages = remote.run(code)
    ended(reply, messages)
    assert reply["content"]["execution_count"] == 1
    assert [m["content"]["execution_count"] for _, m in messages if m["msg_type"] in ("execute_input", "execute_result")] == [1, 1]
    # What was told while the runtime started has been cleared.
    shown = {one["kind"]: one.get("text", one.get("data")) for one in outputs(messages)}
    assert shown == {"stdout": "out\n", "stderr": "err\n", "execute_result": {"text/plain": "'set'"}}
    assert len(outputs(messages)) == 3
    reply, messages = remote.run("print([In, list(Out)])")
    assert reply["content"]["execution_count"] == 2
    assert text(messages) == f"{[['', code, 'print([In, list(Out)])'], [1]]}\n"
    reply, messages = remote.run("1 / 0")
    ended(reply, messages, "error")
    if stack == "newest":
        assert "In[3]" in re.sub(r"\x1b\[[\d;]*m", "", "\n".join(reply["content"]["traceback"]))


# Size


@pytest.mark.parametrize("quirks", [("server=gateway",), pytest.param((), marks=long), pytest.param(("channels=default",), marks=long)], ids=lambda q: "".join(q) or "defaults")
def test_figures_of_1_10_and_50_mb_arrive_as_they_are(quirks, remote):
    remote = remote(*quirks)
    remote.run(f"{IMPORTS}\nimport base64, hashlib, random")
    for size in (1, 10, 50):
        reply, messages = remote.run(
            f"picture = base64.b64encode(random.Random({size}).randbytes({size} * 750_000)).decode()\n"
            "display({'image/png': picture, 'text/plain': 'a figure'}, raw=True)\n"
            "print(len(picture))"
        )
        ended(reply, messages)
        expected = base64.b64encode(random.Random(size).randbytes(size * 750_000)).decode()
        [data] = displayed(messages)
        same = data["image/png"].strip() == expected
        assert same, f"{len(data['image/png'])} characters arrived of {len(expected)}, or others"
        assert text(messages) == f"{size * 1_000_000}\n"
