"""Runs a notebook on two kernels and compares what they gave, cell by cell.

    python compare.py NOTEBOOK KERNEL KERNEL

Equal means: the same outputs in the same order, of the same types, with the same MIME bundles (byte for byte), metadata, texts,
errors, tracebacks and numbers, and the same replies. Two kernels are two processes in two directories, so this and nothing else
is taken out before: addresses of objects and the random ids of widgets, durations and rates, paths of the directory, the home
and the temporary files, and process ids. Adjacent texts of one stream are joined: where one print is cut into messages is a
matter of time in every kernel.
"""

import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

# Kernels under comparison are started in `…/root/content`, with `…/root/root` as home and `…/root/tmp` for temporary files.
NORMAL = [
    (r"0x[0-9a-fA-F]{6,}", "0x…"),
    (r"(?:/[^\s/'\"`:;,()<>]+)+/root/(content|root|tmp)(?![\w.-])", r"/\1"),
    (r"/tmp/tmp\w{6,}", "/tmp/tmp…"),
    (r"\bipykernel_\d+", "ipykernel_…"),
    (r"\b([Pp]id|PID|[Pp]rocess)([ =:]+)\d+", r"\1\2…"),
    # tqdm: [00:01<00:02, 12.34it/s], also before it knows a rate; the blanks after it cover a longer line before
    (r"\[\d\d:\d\d(?::\d\d)?<(?:\d\d:\d\d(?::\d\d)?|\?), +(?:\?|\d+(?:\.\d+)?)[kMG]?(it|B)/s\] *", r"[… \1/s]"),
    (r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)? ?(?:ns|µs|μs|us|ms|s|min)\b", "…s"),
]
NORMAL = [(re.compile(pattern), replacement) for pattern, replacement in NORMAL]
WIDGET_ID = re.compile(r"\b[0-9a-f]{32}\b")

REPLY = ("status", "execution_count", "ename", "evalue", "traceback", "payload", "user_expressions")


@dataclass
class Side:
    """One of the two kernels: where its kernelspec is and how it is started."""

    kernel: str
    kernel_dirs: list
    env: dict = field(default_factory=lambda: dict(os.environ))
    cwd: str = None


@dataclass
class Cell:
    """What a cell gave, as the kernel gave it."""

    source: str
    execution_count: int
    outputs: list
    reply: dict


def run(notebook, side, timeout=120):
    """The code cells of a notebook after a run that no error stops."""
    book = nbformat.read(notebook, 4)
    manager = AsyncKernelManager(kernel_name=side.kernel)
    manager.kernel_spec_manager.kernel_dirs = [str(path) for path in side.kernel_dirs]
    replies = {}

    def executed(cell, cell_index, execute_reply):
        replies[cell_index] = {name: execute_reply["content"].get(name) for name in REPLY}

    client = NotebookClient(
        book, km=manager, timeout=timeout, startup_timeout=60, allow_errors=True, on_cell_executed=executed
    )
    client.execute(env=side.env, cwd=side.cwd, cleanup_kc=True)
    return [
        Cell(cell.source, cell.execution_count, cell.outputs, replies.get(index))
        for index, cell in enumerate(book.cells)
        if cell.cell_type == "code"
    ]


class Normaliser:
    """Takes out of texts what differs between two runs of one kernel."""

    def __init__(self):
        self.ids = {}

    def text(self, text):
        for pattern, replacement in NORMAL:
            text = pattern.sub(replacement, text)
        # By order of appearance, so that two views of one widget stay two views of one widget.
        return WIDGET_ID.sub(lambda match: f"<id {self.ids.setdefault(match[0], len(self.ids))}>", text)

    def value(self, value):
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        return value

    def bundle(self, data):
        """Pictures and the like hold no paths; they are compared as they are."""
        return {
            mime: value if mime.startswith(("image/png", "image/jpeg", "audio/", "video/", "application/pdf")) else self.value(value)
            for mime, value in data.items()
        }

    def output(self, output):
        if output["output_type"] == "stream":
            return {"output_type": "stream", "name": output["name"], "text": self.text(output["text"])}
        output = dict(output)
        if "data" in output:
            return {**output, "data": self.bundle(output["data"]), "metadata": self.value(output["metadata"])}
        return self.value(output)


def joined(outputs):
    """Outputs with adjacent texts of the same stream made one."""
    whole = []
    for output in outputs:
        before = whole[-1] if whole else {}
        if output["output_type"] == "stream" == before.get("output_type") and output["name"] == before["name"]:
            whole[-1] = {**before, "text": before["text"] + output["text"]}
        else:
            whole.append(dict(output))
    return whole


def normal(cells):
    """Cells without what differs between two runs of one kernel."""
    normaliser = Normaliser()
    return [
        Cell(
            cell.source,
            cell.execution_count,
            [normaliser.output(output) for output in joined(cell.outputs)],
            normaliser.value(cell.reply),
        )
        for cell in cells
    ]


def differences(ours, theirs):
    """What differs, a line each; nothing if the two runs are equal."""
    found = []
    if len(ours) != len(theirs):
        return [f"{len(ours)} cells against {len(theirs)}"]
    for number, (mine, other) in enumerate(zip(normal(ours), normal(theirs)), 1):
        place = f"code cell {number}"
        found += difference(place, mine.source, other.source)
        found += difference(f"{place}: execution count", mine.execution_count, other.execution_count)
        found += difference(f"{place}: reply", mine.reply, other.reply)
        kinds = [[kind(output) for output in cell.outputs] for cell in (mine, other)]
        if kinds[0] != kinds[1]:
            found.append(f"{place}: outputs {kinds[0]} against {kinds[1]}")
            continue
        for index, (one, two) in enumerate(zip(mine.outputs, other.outputs), 1):
            found += difference(f"{place}: output {index} ({kind(one)})", one, two)
    return found


def kind(output):
    return f"{output['output_type']} {output.get('name', '')}".strip()


def difference(place, mine, other):
    """Where two values part, down to the character."""
    if type(mine) is type(other) and mine == other:
        return []
    if isinstance(mine, dict) and isinstance(other, dict):
        if mine.keys() != other.keys():
            return [f"{place}: {sorted(mine)} against {sorted(other)}"]
        return [line for key in mine for line in difference(f"{place}, {key}", mine[key], other[key])]
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        return [line for i, pair in enumerate(zip(mine, other)) for line in difference(f"{place}[{i}]", *pair)]
    if isinstance(mine, str) and isinstance(other, str):
        at = len(os.path.commonprefix([mine, other]))
        start = max(at - 40, 0)
        sizes = f"{len(mine)} and {len(other)} characters"
        return [f"{place}: differs at {at} of {sizes}: {mine[start:at + 60]!r} against {other[start:at + 60]!r}"]
    return [f"{place}: {shortened(mine)} against {shortened(other)}"]


def shortened(value):
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 200 else text[:200] + "…"


def main():
    notebook, *kernels = sys.argv[1:]
    from jupyter_core.paths import jupyter_path

    runs = [run(Path(notebook), Side(kernel, jupyter_path("kernels"))) for kernel in kernels]
    found = differences(*runs)
    print("\n".join(found) or "equal")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
