"""Twelve notebooks on the kernel give what they give on ipykernel of the same version, in one run on both of Colab's stacks.

`COLAB_KERNEL_TEST_KERNEL=reference` puts a second ipykernel in the place of the kernel: it tries the tests themselves.
"""

import copy
import os
from pathlib import Path

import pytest
from nbformat.v4 import new_output

import compare
import reference

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))
KERNEL = os.environ.get("COLAB_KERNEL_TEST_KERNEL", "colab")


@pytest.fixture(scope="module", params=reference.STACKS)
def stack(request):
    return request.param


@pytest.fixture(scope="module")
def emulator_of_stack(stack):
    """An emulator, which has made the environment of its stack by the time it has started."""
    from conftest import Emulator

    emulator = Emulator(f"kernels={stack}")
    yield emulator
    emulator.stop()


def reference_side(stack, directory):
    kernels, env = reference.install(stack, directory)
    return compare.Side("reference", [kernels], env, str(directory / "root" / "content"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_ipykernel_gives(notebook, stack, emulator_of_stack, front_for, prefix, tmp_path):
    theirs = compare.run(notebook, reference_side(stack, tmp_path / "theirs"))
    if KERNEL == "reference":
        ours = compare.run(notebook, reference_side(stack, tmp_path / "ours"))
    else:
        front = front_for(emulator_of_stack)
        ours = compare.run(notebook, compare.Side("colab", [prefix / "share" / "jupyter" / "kernels"], front.env))
        assert front.sessions() == []
    assert compare.differences(ours, theirs) == []
    assert [cell.execution_count for cell in ours] == list(range(1, len(ours) + 1))


def test_there_are_twelve_notebooks():
    assert len(NOTEBOOKS) == 12


# The comparison itself


def cell(*outputs, **changes):
    reply = dict.fromkeys(compare.REPLY) | {"status": "ok", "execution_count": 1}
    return compare.Cell(**({"source": "…", "execution_count": 1, "outputs": list(outputs), "reply": reply} | changes))


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def shown(data, **metadata):
    return new_output("display_data", data, metadata=metadata)


LINES = stream("".join(f"line {i}\n" for i in range(10)))
PICTURE = shown({"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"}, **{"image/png": {"width": 3}})
TABLE = new_output("execute_result", {"text/html": "<table>", "text/plain": "a"}, execution_count=1)
ERROR = new_output("error", ename="KeyError", evalue="'k'", traceback=["---", "KeyError: 'k'"])
WHOLE = [LINES, PICTURE, stream("on stderr", "stderr"), TABLE, ERROR]


def changed(index, **changes):
    outputs = copy.deepcopy(WHOLE)
    outputs[index].update(changes)
    return outputs


SEEDED = {
    "a missing line": changed(0, text=LINES.text.replace("line 4\n", "")),
    "a repeated line": changed(0, text=LINES.text.replace("line 4\n", "line 4\nline 4\n")),
    "two lines in another order": changed(0, text=LINES.text.replace("line 4\nline 5\n", "line 5\nline 4\n")),
    "a missing end of line": changed(0, text=LINES.text[:-1]),
    "a carriage return more": changed(0, text=LINES.text.replace("\n", "\r\n", 1)),
    "the other stream": changed(0, name="stderr"),
    "a display in another place": [PICTURE, LINES, *WHOLE[2:]],
    "a display twice": [LINES, PICTURE, *WHOLE[1:]],
    "no display": [LINES, *WHOLE[2:]],
    "another MIME type": changed(1, data={"image/jpeg": "iVBORw0KGgo=", "text/plain": "<Figure>"}),
    "a MIME type less": changed(1, data={"text/plain": "<Figure>"}),
    "another picture": changed(1, data={"image/png": "iVBORw0KGgp=", "text/plain": "<Figure>"}),
    "other metadata": changed(1, metadata={"image/png": {"width": 4}}),
    "a result as display": changed(3, output_type="display_data"),
    "another number of a result": changed(3, execution_count=2),
    "another name of an error": changed(4, ename="ValueError"),
    "a shorter traceback": changed(4, traceback=["KeyError: 'k'"]),
}


@pytest.mark.parametrize("outputs", SEEDED.values(), ids=SEEDED.keys())
def test_the_comparison_finds(outputs):
    assert compare.differences([cell(*copy.deepcopy(WHOLE))], [cell(*copy.deepcopy(WHOLE))]) == []
    assert compare.differences([cell(*outputs)], [cell(*WHOLE)])
    assert compare.differences([cell(*WHOLE)], [cell(*outputs)])


def test_the_comparison_finds_other_numbers_replies_and_cells():
    assert compare.differences([cell(execution_count=2)], [cell()])
    assert compare.differences([cell(reply={**cell().reply, "status": "error"})], [cell()])
    assert compare.differences([cell(reply={**cell().reply, "payload": [{"source": "page"}]})], [cell()])
    assert compare.differences([cell(), cell()], [cell()])


def same(one, two):
    return compare.differences([cell(stream(one))], [cell(stream(two))]) == []


def test_where_a_print_is_cut_into_messages_does_not_matter():
    assert compare.differences([cell(stream("a"), stream("b"))], [cell(stream("ab"))]) == []
    assert compare.differences([cell(stream("a"), stream("b", "stderr"), stream("c"))], [cell(stream("ac"), stream("b", "stderr"))])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("<object at 0x7f3a5c0d2e10>", "<object at 0x7fffe4d2a0b0>"),
        ("/tmp/x1/runtime-1/root/content/a.py", "/var/tmp/pytest-of-me/theirs/root/content/a.py"),
        ("File /tmp/a/root/tmp/ipykernel_12/77.py:1", "File /tmp/b/root/tmp/ipykernel_3456/77.py:1"),
        ("20.1 ms ± 30 µs per loop", "20.9 ms ± 1.2 ms per loop"),
        ("Wall time: 20.3 ms", "Wall time: 1min"),
        ("5/5 [00:00<00:00, 812.5it/s]", "5/5 [00:01<00:00, 9.11it/s]"),
        ("process 12 ended", "process 4711 ended"),
    ],
)
def test_what_differs_between_two_runs_of_one_kernel_does_not_matter(one, two):
    assert one == two or same(one, two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("/content/a.py", "/content/b.py"),
        ("ipykernel_1/77.py", "ipykernel_1/78.py"),
        ("2 loops each", "3 loops each"),
        ("4/5 [00:00<00:00, 1it/s]", "5/5 [00:00<00:00, 1it/s]"),
        ("version 7.4.0", "version 6.17.1"),
        ("In [1]", "In [2]"),
    ],
)
def test_everything_else_matters(one, two):
    assert not same(one, two)


def test_ids_of_widgets_are_compared_by_their_order():
    def view(digit):
        return shown({"application/vnd.jupyter.widget-view+json": {"model_id": digit * 32}})

    assert compare.differences([cell(view("a"), view("b"), view("a"))], [cell(view("c"), view("d"), view("c"))]) == []
    assert compare.differences([cell(view("a"), view("b"), view("a"))], [cell(view("c"), view("d"), view("d"))])
