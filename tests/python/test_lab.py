"""JupyterLab in a headless Chromium on the kernel, as a user sees it: on Colab's stack and on the newest.

One notebook with every kind of output is run in the page; the tests look at what the page shows and wait for it, never for a
time. `COLAB_KERNEL_SHOTS` names a directory for screenshots. `COLAB_KERNEL_TEST_KERNEL=reference` puts ipykernel in the place of
the kernel, to try the tests themselves (Colab's ipywidgets 7 then shows nothing, as it does without our bridge).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect, sync_playwright

import reference
from conftest import Emulator, Front

KERNEL = os.environ.get("COLAB_KERNEL_TEST_KERNEL", "colab")
CUSTOM = "application/vnd.colab-kernel.test+json"
PATIENCE = 60_000  # milliseconds: for what a machine under load may take

CELLS = {
    "plot": (
        "import matplotlib.pyplot as plt\nprint('text before')\nplt.figure(figsize=(4, 2))\nplt.plot([1, 3, 2])\n"
        "plt.show()\nprint('text after')"
    ),
    "table": "import pandas as pd\npd.DataFrame({'planet': ['Earth', 'Mars'], 'moons': [1, 2]})",
    "custom": (
        "from IPython.display import display\n"
        f"display({{'{CUSTOM}': {{'nested': [1, 2.5, None]}}, 'text/plain': 'text beside the custom type'}}, raw=True)"
    ),
    "tqdm": (
        "import time\nfrom tqdm.notebook import tqdm\nfor i in tqdm(range(20), desc='steps'):\n    time.sleep(0.01)\n"
        "print('counted to', i)"
    ),
    "interact": (
        "from ipywidgets import interact\n\n\n@interact(x=(0, 10))\ndef square(x=5):\n    print('the square is', x * x)"
    ),
    "output": (
        "import ipywidgets\nout = ipywidgets.Output(layout={'border': '1px solid'})\ndisplay(out)\n"
        "with out:\n    print('inside the widget')\nprint('outside the widget')"
    ),
    "input": "name = input('name? ')\nprint('hello,', name)",
    "result": "kept = 6 * 7\nkept",
    "fail": "1 / 0",
    "never": "print('never')",
    "nor this": "'nor this'",
    "loop": "print('begun', flush=True)\nwhile True:\n    pass",
    "scratch": "",
}
PLACES = {name: place for place, name in enumerate(CELLS)}
COUNTED = PLACES["fail"] + 1

OUT = "application/vnd.jupyter.stdout"
# What is shown below each cell that has an output, and nothing else: no notice of a start is left, and nothing is there twice.
# A widget itself has no type in the page; what is printed into it has. The prompt of `input()` is an output of its own.
SHOWN = {
    "plot": [OUT, "image/png", OUT],
    "table": ["text/html"],
    "custom": ["text/plain"],
    "tqdm": [OUT],
    "interact": [OUT],
    "output": [OUT, OUT],
    "input": [OUT, OUT],
    "result": ["text/plain"],
    "fail": ["application/vnd.jupyter.stderr"],
}


def book(names):
    metadata = {"kernelspec": {"name": KERNEL, "display_name": KERNEL, "language": "python"}}
    cells = [new_code_cell(CELLS[name], id=name.replace(" ", "-")) for name in names]
    return new_notebook(cells=cells, metadata=metadata)


def until(condition, what):
    deadline = time.monotonic() + PATIENCE / 1000
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in time"
        time.sleep(0.02)


@pytest.fixture(scope="module", params=reference.STACKS)
def stack(request):
    return request.param


@pytest.fixture(scope="module")
def front(stack, prefix, tmp_path_factory):
    """A user of an emulator of that stack, in a directory of its own."""
    directory = tmp_path_factory.mktemp(f"lab-{stack}")
    emulator = Emulator(f"kernels={stack}")
    front = Front(emulator, prefix, directory)
    if KERNEL == "reference":
        kernels, _ = reference.install(stack, directory)
        front.env["JUPYTER_PATH"] = str(kernels.parent)
    yield front
    emulator.stop()


@pytest.fixture(scope="module")
def chromium():
    path = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if path is None and os.environ.get("CI", "").lower() == "true":
        pytest.fail("no chromium, and in CI its absence is a failure")
    if path is None:
        pytest.skip("skipped: no chromium")
    with sync_playwright() as playwright:
        # As root there is no sandbox; the rest keeps it from looking at a network that is none of the test's business.
        browser = playwright.chromium.launch(
            executable_path=path,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-quic",
                "--disable-sync",
                "--no-first-run",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(front):
    """JupyterLab's server; its URL and token."""
    directory = front.directory
    settings = {
        "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
        # All cells stay in the document, wherever the page is scrolled to.
        "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
        "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
        # After a second JupyterLab would drop an answer, and the first one imports much.
        "@jupyterlab/completer-extension/manager": {"providerTimeout": PATIENCE},
    }
    for name, values in settings.items():
        path = directory / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    (directory / "notebooks").mkdir()
    env = dict(
        front.env,
        JUPYTERLAB_SETTINGS_DIR=str(directory / "settings"),
        JUPYTERLAB_WORKSPACES_DIR=str(directory / "workspaces"),
        JUPYTER_TOKEN="lab",
    )
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    with open(directory / "server.log", "wb") as log:
        process = subprocess.Popen(
            [*command, f"--ServerApp.root_dir={directory / 'notebooks'}"], env=env, stdout=log, stderr=log
        )
    info = directory / "runtime" / f"jpserver-{process.pid}.json"
    try:
        until(lambda: info.exists() or process.poll() is not None, "server")
        assert process.poll() is None, (directory / "server.log").read_text()
        until(lambda: info.read_text().endswith("}"), "server")
        yield json.loads(info.read_text())["url"]
    finally:
        process.terminate()
        process.wait(timeout=60)


class Lab:
    """The notebook in the page."""

    def __init__(self, page, server, front, stack):
        self.page, self.server, self.directory, self.stack = page, server, front.directory, stack
        self.path = front.directory / "notebooks" / "lab.ipynb"
        self.complaints = []
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        shots = os.environ.get("COLAB_KERNEL_SHOTS")
        self.shots = Path(shots) if shots else front.directory / "shots"

    def cell(self, name):
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(PLACES[name])

    def shows(self, name, text):
        expect(self.cell(name).locator(".jp-Cell-outputArea")).to_contain_text(text, timeout=PATIENCE)

    def numbered(self, name, number):
        """Waits until a cell's prompt shows this number (`*`: it runs or waits, "": it has none)."""
        text = re.compile(rf"^\[{re.escape(str(number) or ' ')}\]:$")
        expect(self.cell(name).locator(".jp-InputPrompt")).to_have_text(text, timeout=PATIENCE)

    def shows_all(self, widgets=True):
        """Waits until all cells of a whole run show what they have to, and checks that they show nothing else."""
        if widgets:
            expect(self.cell("tqdm").locator(".widget-hprogress").first).to_be_visible(timeout=PATIENCE)
            expect(self.cell("interact").locator(".widget-slider").first).to_be_visible(timeout=PATIENCE)
            expect(self.cell("interact").locator(".widget-output")).to_contain_text("the square is", timeout=PATIENCE)
            expect(self.cell("output").locator(".widget-output")).to_have_text("inside the widget\n", timeout=PATIENCE)
        expect(self.cell("plot").locator(".jp-RenderedImage img")).to_be_visible(timeout=PATIENCE)
        for name in PLACES:
            if widgets or name not in ("tqdm", "interact", "output"):
                shown = self.cell(name).locator(".jp-OutputArea-output[data-mime-type]")
                kinds = shown.evaluate_all("all => all.map(one => one.dataset.mimeType)")
                assert kinds == SHOWN.get(name, []), name

    def connected(self):
        """Waits for the page's connection to the kernel: what is run before that JupyterLab drops without a word."""
        def state():
            kernels = self.page.request.get(f"{self.server}api/kernels?token=lab").json()
            return [(kernel["execution_state"], kernel["connections"]) for kernel in kernels]

        until(lambda: state() == [("idle", 1)], "connection to the kernel")
        self.idle()

    def idle(self):
        status = self.page.locator("#jp-main-statusbar", has_text=re.compile(r"\| Idle"))
        expect(status).to_be_attached(timeout=PATIENCE)
        circle = self.page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        expect(circle).to_be_attached(timeout=PATIENCE)

    def menu(self, menu, item):
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{menu}$")).click()
        self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{item}$")).click()

    def restart(self, item):
        with self.page.expect_response(lambda response: response.url.partition("?")[0].endswith("/restart"), timeout=PATIENCE):
            self.menu("Kernel", item)
            self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def edit(self, name, text):
        """Puts text into a cell, typed by hand, and leaves the cursor at its end."""
        self.cell(name).locator(".cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.press("Delete")
        self.page.keyboard.type(text)

    def source(self, name):
        return self.cell(name).locator(".cm-content")

    def run(self, name):
        self.cell(name).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def type_input(self, text):
        box = self.cell("input").locator("input.jp-Stdin-input")
        expect(box).to_be_visible(timeout=PATIENCE)
        box.fill(text)
        box.press("Enter")

    def save(self):
        """The notebook as it is saved."""
        before = self.path.stat().st_mtime_ns
        self.menu("File", "Save Notebook")
        until(lambda: self.path.stat().st_mtime_ns != before, "saved notebook")
        until(lambda: self.path.read_text().endswith("}\n") or self.path.read_text().endswith("}"), "saved notebook")
        return nbformat.read(self.path, 4)

    def shot(self, name):
        self.shots.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self.shots / f"{self.stack}-{name}.png")


@pytest.fixture(scope="module")
def lab(stack, front, server, chromium):
    """The notebook, opened and run from its first cell to the one that fails."""
    page = chromium.new_page(viewport={"width": 1200, "height": 2400})
    page.set_default_timeout(PATIENCE)
    lab = Lab(page, server, front, stack)
    nbformat.write(book(CELLS), lab.path)
    page.goto(f"{server}lab/tree/lab.ipynb?token=lab")
    expect(page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(len(CELLS), timeout=PATIENCE)
    lab.connected()
    lab.menu("Run", "Run All Cells")
    lab.type_input("Ada")
    lab.shows("fail", "ZeroDivisionError")
    lab.idle()
    yield lab
    page.close()


def renders_widgets(stack):
    return KERNEL != "reference" or stack != "colab"


@pytest.fixture
def widgets_render(stack):
    if not renders_widgets(stack):
        pytest.skip("ipywidgets 7 does not render in JupyterLab 4 without the kernel's bridge")


def test_run_all_shows_text_figures_tables_and_results(lab):
    lab.shot("run-all")
    lab.shows("plot", "text before")
    lab.shows("plot", "text after")
    lab.shows_all(renders_widgets(lab.stack))
    expect(lab.cell("table").locator(".jp-RenderedHTMLCommon table tbody tr")).to_have_count(2)
    lab.shows("table", "Mars")
    lab.shows("custom", "text beside the custom type")
    lab.shows("input", "hello, Ada")
    lab.shows("result", "42")


def test_widgets_render_with_what_they_hold(lab, widgets_render):
    lab.shows("tqdm", "counted to 19")
    lab.shows("tqdm", "20/20")
    expect(lab.cell("tqdm").locator(".jupyter-widgets.widget-hprogress, .widget-hprogress").first).to_be_visible()
    expect(lab.cell("interact").locator(".widget-slider").first).to_be_visible()
    expect(lab.cell("output").locator(".jupyter-widgets .jp-OutputArea-output")).to_have_text("inside the widget\n")
    lab.shows("output", "outside the widget")


def test_an_error_stops_run_all_and_later_cells_have_no_number(lab):
    for number, name in enumerate(list(CELLS)[:COUNTED], 1):
        lab.numbered(name, number)
    for name in ("never", "nor this"):
        lab.numbered(name, "")
        expect(lab.cell(name).locator(".jp-OutputArea-output")).to_have_count(0)
    expect(lab.cell("fail").locator(".jp-OutputArea-output")).to_have_count(1)


def test_the_saved_notebook_holds_all_bundles_and_numbers(lab):
    saved = lab.save()
    cells = saved.cells
    assert [cell.execution_count for cell in cells[:COUNTED]] == list(range(1, COUNTED + 1))
    assert [cell.execution_count for cell in cells[COUNTED : PLACES["loop"]]] == [None, None]
    outputs = {name: cells[place].outputs for name, place in PLACES.items()}
    assert outputs["custom"][0].data[CUSTOM] == {"nested": [1, 2.5, None]}
    assert [output.output_type for output in outputs["plot"]] == ["stream", "display_data", "stream"]
    assert "image/png" in outputs["plot"][1].data
    assert "text/html" in outputs["table"][0].data
    for name in ("tqdm", "interact", "output"):
        assert any("application/vnd.jupyter.widget-view+json" in output.get("data", {}) for output in outputs[name])
    assert outputs["fail"][0].ename == "ZeroDivisionError"
    text = {name: [output.text for output in all if output.output_type == "stream"] for name, all in outputs.items()}
    assert text["plot"] == ["text before\n", "text after\n"]
    assert text["output"] == ["outside the widget\n"]
    assert not any(output.get("name") == "stderr" for all in outputs.values() for output in all)


def test_the_saved_notebook_becomes_html_with_plots_and_widgets(lab, front, widgets_render):
    lab.save()
    target = front.directory / "saved.html"
    done = front.jupyter("jupyter", "nbconvert", "--to", "html", lab.path, "--output", target)
    assert done.returncode == 0, done.stderr
    assert_plots_and_widgets(target.read_text())


def test_a_slider_moved_by_keyboard_changes_the_output(lab, widgets_render):
    handle = lab.cell("interact").locator(".noUi-handle")
    readout = lab.cell("interact").locator(".widget-readout")
    value = int(readout.inner_text())
    handle.focus()
    for key, step in (("ArrowRight", 1), ("ArrowRight", 1), ("ArrowLeft", -1)):
        value += step
        lab.page.keyboard.press(key)
        expect(readout).to_have_text(str(value))
        expect(lab.cell("interact").locator(".widget-output")).to_have_text(
            f"the square is {value * value}\n", timeout=PATIENCE
        )
    lab.idle()
    lab.shot("slider")


def test_tab_completes_a_name_of_the_session(lab):
    lab.edit("scratch", "kept.bit_")
    lab.page.keyboard.press("Tab")
    expect(lab.page.locator(".jp-Completer .jp-Completer-match", has_text="bit_length")).to_be_visible(timeout=PATIENCE)
    expect(lab.page.locator(".jp-Completer .jp-Completer-match", has_text="bit_count")).to_be_visible()
    lab.shot("completion")
    lab.page.keyboard.type("l")
    expect(lab.page.locator(".jp-Completer .jp-Completer-match")).to_have_count(1)
    lab.page.keyboard.press("Enter")
    expect(lab.source("scratch")).to_have_text("kept.bit_length")


def test_shift_tab_shows_a_docstring(lab):
    lab.edit("scratch", "len(")
    lab.page.keyboard.press("Shift+Tab")
    expect(lab.page.locator(".jp-Tooltip")).to_contain_text("Return the number of items in a container", timeout=PATIENCE)
    expect(lab.page.locator(".jp-Tooltip .jp-RenderedText pre")).to_be_visible()
    lab.shot("inspection")
    lab.page.keyboard.press("Escape")
    expect(lab.page.locator(".jp-Tooltip")).to_have_count(0)


def test_interrupt_ends_an_endless_loop_and_keeps_the_variables(lab):
    lab.run("loop")
    lab.shows("loop", "begun")
    lab.numbered("loop", "*")
    lab.menu("Kernel", "Interrupt Kernel")
    lab.shows("loop", "KeyboardInterrupt")
    lab.idle()
    lab.shot("interrupt")
    lab.edit("scratch", "kept + 1")
    lab.run("scratch")
    lab.shows("scratch", "43")


def test_restart_forgets_the_variables_and_begins_at_one(lab):
    lab.restart("Restart Kernel…")
    lab.idle()
    lab.edit("scratch", "'kept' in globals()")
    lab.run("scratch")
    lab.shows("scratch", "False")
    lab.numbered("scratch", 1)


def test_restart_and_run_all_gives_the_same_again(lab):
    lab.restart("Restart Kernel and Run All Cells…")
    lab.type_input("Grace")
    lab.shows("input", "hello, Grace")
    lab.numbered("fail", COUNTED)
    lab.idle()
    lab.shot("restart-and-run-all")
    for number, name in enumerate(list(CELLS)[:COUNTED], 1):
        lab.numbered(name, number)
    for name in list(CELLS)[COUNTED:]:
        lab.numbered(name, "")
    lab.shows_all(renders_widgets(lab.stack))
    lab.shows("result", "42")


def test_a_page_that_is_loaded_again_shows_the_widgets_and_they_live(lab, widgets_render):
    lab.save()
    lab.page.reload()
    lab.connected()
    lab.shows_all()
    lab.cell("interact").locator(".noUi-handle").focus()
    lab.page.keyboard.press("ArrowRight")
    lab.shows("interact", "the square is 36")
    lab.idle()
    lab.shows_all()
    lab.shot("loaded-again")


def test_the_page_had_nothing_to_complain_of(lab, widgets_render):
    assert lab.complaints == []


class Page(HTMLParser):
    """The JSON scripts and the pictures of a page."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.images, self.kind = {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "script":
            self.kind = attributes.get("type")
        if tag == "img":
            self.images.append(attributes.get("src", ""))

    def handle_endtag(self, tag):
        if tag == "script":
            self.kind = None

    def handle_data(self, data):
        if self.kind and self.kind.endswith("json"):
            self.scripts.setdefault(self.kind, []).append(json.loads(data))


def assert_plots_and_widgets(text):
    """Of a page that nbconvert made of a notebook with the cells up to the Output widget."""
    page = Page(text)
    assert len([image for image in page.images if image.startswith("data:image/png;base64,iVBOR")]) == 1
    assert "<th>moons</th>" in text
    views = page.scripts["application/vnd.jupyter.widget-view+json"]
    [state] = page.scripts["application/vnd.jupyter.widget-state+json"]
    models = state["state"]
    assert len(views) == 3
    assert all(view["model_id"] in models for view in views)
    # Those that nbconvert's template finds a renderer for.
    versions = {model["model_module"]: model["model_module_version"] for model in models.values()}
    assert versions == {"@jupyter-widgets/base": "2.0.0", "@jupyter-widgets/controls": "2.0.0", "@jupyter-widgets/output": "1.0.0"}
    values = {model["model_name"]: model["state"] for model in models.values()}
    assert values["IntSliderModel"]["value"] == 5
    assert "20/20" in json.dumps(models)
    inside = [model["state"]["outputs"] for model in models.values() if model["model_name"] == "OutputModel"]
    assert "inside the widget" in json.dumps(inside) and "the square is 25" in json.dumps(inside)


def test_nbconvert_to_html_keeps_plots_and_widgets(front):
    source, target = front.directory / "batch.ipynb", front.directory / "batch.html"
    nbformat.write(book(["plot", "table", "custom", "tqdm", "interact", "output", "result"]), source)
    done = front.jupyter("jupyter", "nbconvert", "--execute", "--to", "html", "--ExecutePreprocessor.timeout=60", source, "--output", target)
    assert done.returncode == 0, done.stderr
    assert_plots_and_widgets(target.read_text())
