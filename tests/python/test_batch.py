"""nbconvert and papermill run notebooks on the kernel as they do on ipykernel."""

import re

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

CELLS = [
    "n = 3  # parameters",
    "import sys, time\nfor i in range(n):\n    print('line', i, flush=True)\n    time.sleep(0.05)",
    "print('to stderr', file=sys.stderr, flush=True)\nprint('to stdout', flush=True)",
    "n * 14",
    "print('\\u00e9\\u4e2d\\U0001f600 \\x1b[31mred\\x1b[0m\\tend')",
    "for p in range(0, 101, 50):\n    print(f'\\r{p}%', end='')",
    "def fail():\n    raise KeyError('as asked')\nprint('before')\nfail()",
    "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})",
    "from IPython.display import HTML, display\nprint('text first')\ndisplay(HTML('<b>bold</b>'))",
    "_ = None\n'done'",
]


def notebook(kernel):
    cells = [new_code_cell(source) for source in CELLS]
    cells[0].metadata.tags = ["parameters"]
    cells[6].metadata.tags = ["raises-exception"]
    metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    return new_notebook(cells=cells, metadata=metadata)


def essence(cell):
    """What must be equal between kernels: other versions of IPython and pandas format tracebacks and HTML differently, and
    where one print is cut into messages is a matter of time in each."""
    outputs = []
    for output in cell.outputs:
        if output.output_type == "error":
            outputs.append(("error", output.ename, output.evalue))
        elif output.output_type == "stream":
            if outputs and outputs[-1][:2] == ("stream", output.name):
                output.text = outputs.pop()[2] + output.text
            outputs.append(("stream", output.name, output.text))
        else:
            data = {kind: value for kind, value in output.data.items() if kind != "text/html"}
            outputs.append((output.output_type, data, "text/html" in output.data, output.get("execution_count")))
    return cell.execution_count, outputs


def nbconvert(front, directory, kernel):
    source, target = directory / f"{kernel}.ipynb", directory / f"{kernel}.out.ipynb"
    nbformat.write(notebook(kernel), source)
    done = front.jupyter("jupyter", "nbconvert", "--to", "notebook", "--execute", source, "--output", target)
    assert done.returncode == 0, done.stderr
    return nbformat.read(target, 4)


def test_nbconvert_gives_what_ipykernel_gives_and_leaves_no_session(front, tmp_path):
    ours = nbconvert(front, tmp_path, "colab")
    theirs = nbconvert(front, tmp_path, "python3")
    for mine, reference in zip(ours.cells, theirs.cells, strict=True):
        assert essence(mine) == essence(reference), mine.source
    assert ours.cells[-1].execution_count == len(CELLS)
    assert front.sessions() == []


def test_papermill_passes_parameters_and_leaves_no_session(front, tmp_path):
    source, target = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(notebook("colab"), source)
    done = front.jupyter("papermill", source, target, "-k", "colab", "-p", "n", "2")
    # papermill reports a cell that raises at the end, whatever its tags say.
    assert done.returncode == 1
    assert "KeyError" in done.stderr
    cells = nbformat.read(target, 4).cells
    by_source = {cell.source: cell for cell in cells}
    assert "".join(output.text for output in by_source[CELLS[1]].outputs) == "line 0\nline 1\n"
    assert by_source[CELLS[3]].outputs[0].data["text/plain"] == "28"
    assert front.sessions() == []


def test_papermill_runs_a_notebook_to_its_end(front, tmp_path):
    source, target = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    book = notebook("colab")
    del book.cells[6]
    nbformat.write(book, source)
    done = front.jupyter("papermill", source, target, "-k", "colab", "-p", "n", "2", "--log-output")
    assert done.returncode == 0, done.stderr
    cells = nbformat.read(target, 4).cells
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert front.sessions() == []


def test_a_failing_cell_stops_nbconvert_with_its_error(front, tmp_path):
    source = tmp_path / "fails.ipynb"
    book = notebook("colab")
    book.cells[6].metadata.tags = []
    nbformat.write(book, source)
    done = front.jupyter("jupyter", "nbconvert", "--to", "notebook", "--execute", source)
    assert done.returncode != 0
    assert re.search(r"KeyError.*as asked", done.stderr)
    assert front.sessions() == []


def test_a_batch_run_without_credentials_fails_with_the_next_step(front, tmp_path):
    front.env.pop("COLAB_KERNEL_TOKEN")
    front.env["HOME"] = str(tmp_path)
    front.env["CLOUDSDK_CONFIG"] = str(tmp_path / "gcloud")
    front.env.pop("GOOGLE_APPLICATION_CREDENTIALS", None)
    source = tmp_path / "in.ipynb"
    nbformat.write(notebook("colab"), source)
    done = front.jupyter("jupyter", "nbconvert", "--to", "notebook", "--execute", source, timeout=120)
    assert done.returncode != 0
    assert "ColabAuthRequired" in done.stderr
    assert "gcloud auth application-default login --scopes=" in done.stderr
