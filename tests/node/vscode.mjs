// A kernel under the hands of VS Code's Jupyter extension (https://github.com/microsoft/vscode-jupyter), without VS Code:
// `node vscode.mjs --stage before-session` ends before the first cell, `--stage full` goes on.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";

import { Notebook } from "./notebook.mjs";
import { Emulator, installedArgv, within } from "./processes.mjs";

const stages = { "before-session": beforeSession, full };
const { stage = "before-session" } = parseArgs({ options: { stage: { type: "string" } } }).values;
assert(stage in stages, `--stage is one of ${Object.keys(stages).join(", ")}`);

const directory = mkdtempSync(path.join(tmpdir(), "colab kernel "));
const token = `token-${randomUUID()}`;
const emulator = await Emulator.start();
let notebook;
let failed = true;
try {
  const state = path.join(directory, "state");
  notebook = new Notebook(installedArgv(directory), directory, {
    COLAB_KERNEL_ENDPOINT: emulator.endpoint,
    COLAB_KERNEL_TOKEN: token,
    COLAB_KERNEL_STATE_DIR: state,
    COLAB_KERNEL_LOG: "debug",
  });
  await stages[stage]();
  await notebook.kill();
  failed = false;
} finally {
  notebook?.process?.process.kill("SIGKILL");
  await emulator.stop();
  if (failed) tellLogs();
  rmSync(directory, { recursive: true });
}
// Sockets that a failed step left open do not hold the process.
process.exit(0);

function step(name) {
  console.log(`ok: ${name}`);
}

/** The start, which must be as quick as with a local kernel and start no machine. */
async function opens() {
  await notebook.open();
  const { matches } = (await within(5_000, "the warm-up", notebook.warmUp)).content;
  assert(Array.isArray(matches));
  for (const [what, took] of Object.entries(notebook.took)) assert(took < 1_000, `${what} took ${took} ms`);
  assert.deepEqual(notebook.failures, []);
  const shown = notebook.messages.filter(({ header }) => ["stream", "error", "display_data"].includes(header.msg_type));
  assert.deepEqual(shown, []);
  const invalid = notebook.messages.filter(({ header, content }) => header.msg_type.endsWith("_reply") && content.status !== "ok");
  assert.deepEqual(invalid, []);
}

async function beforeSession() {
  await opens();
  const { info } = notebook.kernel;
  assert.equal((await info).language_info.name, "python");
  step("the notebook opens");

  // Questions of the editor, before there is anything to ask.
  assert.equal(await notebook.ask('get_ipython().kernel.do_complete("pri", 3)'), undefined);
  assert.deepEqual((await notebook.silently("import sys as _VSCODE_sys\nprint(_VSCODE_sys.executable); del _VSCODE_sys")).outputs, []);
  step("questions get an empty answer");

  // Current releases interrupt on control, older ones on shell.
  for (const channel of ["control", "shell"]) {
    const reply = await notebook.control("interrupt_request", channel);
    assert.equal(reply.content.status, "ok");
  }
  step("an interrupt while idle is harmless");

  const sessions = new Set();
  for (const signal of ["SIGTERM", "SIGKILL"]) {
    sessions.add(notebook.messages.at(-1).header.session);
    const took = await notebook.kill(signal);
    assert(took < 1_000, `${signal}: the end took ${took} ms`);
    await opens();
    step(`a new process follows ${signal}`);
  }
  sessions.add(notebook.messages.at(-1).header.session);
  assert.equal(sessions.size, 3);

  assert.deepEqual(await emulator.runtimes(token), []);
  step("no machine was started");
}

async function full() {
  await opens();
  assert.deepEqual(await emulator.runtimes(token), []);

  const first = await notebook.execute("print(__vsc_ipynb_file__, from_settings)");
  assert.equal(first.text, `${notebook.file} yes\n`);
  assert(first.outputs.every(({ type }) => type === "stream"));
  assert.equal(first.execution_count, 1);
  assert.equal((await emulator.sessions(token)).length, 1);
  step("the first cell finds what the start-up code prepared, and leaves nothing else");

  const rich = await notebook.execute("from IPython.display import display, HTML\nprint('before')\nh = display(HTML('<b>1</b>'), display_id=True)\nprint('after')\n6 * 7");
  assert.deepEqual(rich.outputs.map(({ type }) => type), ["stream", "display_data", "stream", "execute_result"]);
  assert.equal(rich.outputs[3].data["text/plain"], "42");
  await notebook.execute("h.update(HTML('<b>2</b>'))");
  // The library hands it to the cell that shows the display, so that the cell that sent it does not see it.
  const { content: update } = notebook.messages.find(({ header }) => header.msg_type === "update_display_data");
  assert.equal(update.transient.display_id, rich.outputs[1].transient.display_id);
  assert.equal(update.data["text/html"], "<b>2</b>");
  step("rich output comes in order, and is updated from another cell");

  const prompts = [];
  const answers = ["Ada", ""];
  const talk = await notebook.execute("a = input('Name? ')\nb = input('Escape ')\nprint(repr(a), repr(b))", {
    answer: ({ prompt, password }) => {
      prompts.push([prompt, password]);
      return answers[prompts.length - 1];
    },
  });
  assert.deepEqual(prompts, [["Name? ", false], ["Escape ", false]]);
  assert.equal(talk.text, "'Ada' ''\n");
  step("input() is asked once, and answered");

  await editorQuestions();

  const { execution_count: count } = await notebook.execute("pass");
  assert.equal(count, 6);
  step("questions do not count");

  const failing = await notebook.execute("1 / 0");
  assert.equal(failing.status, "error");
  assert.equal(failing.outputs.at(-1).ename, "ZeroDivisionError");

  let interrupted;
  const loop = await notebook.execute("import time\nkept = 'here'\nprint('begun', flush=True)\nwhile True:\n    time.sleep(0.05)", {
    begun: () => (interrupted ??= notebook.control("interrupt_request")),
  });
  assert.equal((await interrupted).content.status, "ok");
  assert.equal(loop.ename, "KeyboardInterrupt");
  assert.equal((await notebook.execute("print(kept)")).text, "here\n");
  step("an interrupt ends the cell and nothing else");

  await widget();

  const old = { session: notebook.messages.at(-1).header.session, colab: await emulator.sessions(token) };
  const took = await notebook.kill();
  // The kernel gives its remote session back first, for at most two seconds.
  assert(took < 2_000, `SIGTERM: the end took ${took} ms`);
  assert.deepEqual((await emulator.sessions(token)).filter((name) => old.colab.includes(name)), []);
  await opens();
  assert.notEqual(notebook.messages.at(-1).header.session, old.session);
  const anew = await notebook.execute("print('kept' in globals(), from_settings)");
  assert.equal(anew.text, "False yes\n");
  assert.equal(anew.execution_count, 1);
  step("a restart is a new process with a new namespace, and the old session is gone");

  await notebook.kill("SIGKILL");
  await opens();
  assert.equal((await notebook.execute("print('from_settings' in globals())")).text, "True\n");
  step("a killed kernel is followed by another");
}

/** Completion, hover and the variable view. */
async function editorQuestions() {
  await notebook.execute("import math\nanswer = 42");
  for (const seconds of [0, 1]) {
    const completed = await notebook.ask('get_ipython().kernel.do_complete("math.sq", 7)', { seconds });
    assert.equal(completed.status, "ok");
    assert(completed.matches.some((match) => match.endsWith("sqrt")), JSON.stringify(completed));
  }
  // Two at a time, as when the user types on.
  const both = await Promise.all(["ans", "mat"].map((code) => notebook.ask(`get_ipython().kernel.do_complete("${code}", 3)`)));
  assert(both.every(({ matches }, i) => matches.some((match) => match.startsWith(["answer", "math"][i]))));
  const hover = await notebook.ask('get_ipython().kernel.do_inspect("math.sqrt", 9)');
  assert(hover.found && JSON.stringify(hover.data).includes("square root"), JSON.stringify(hover));
  const variables = await notebook.ask('[{"name": name, "value": repr(globals()[name])} for name in ("answer",)]');
  assert.deepEqual(variables, [{ name: "answer", value: "42" }]);
  step("completion, hover and variables are answered from a thread, also after idle");
}

/** VS Code has the widgets of both versions, so that they reach it as the kernel has them. */
async function widget() {
  const opened = [];
  notebook.kernel.registerCommTarget("jupyter.widget", (comm, message) => {
    opened.push({ comm, state: message.content.data.state });
  });
  const made = await notebook.execute("import ipywidgets\ns = ipywidgets.IntSlider(description_tooltip='x') if ipywidgets.__version__[0] == '7' else ipywidgets.IntSlider()\nprint(ipywidgets.__version__)\ns");
  const seven = made.text.startsWith("7.");
  const slider = opened.find(({ state }) => state._model_name === "IntSliderModel");
  assert.equal(slider.state._model_module_version, seven ? "1.5.0" : "2.0.0");
  assert.equal("description_tooltip" in slider.state, seven);
  const view = made.outputs.find((output) => output.data?.["application/vnd.jupyter.widget-view+json"]);
  assert.equal(view.data["application/vnd.jupyter.widget-view+json"].model_id, slider.comm.commId);
  await within(10_000, "the widget's message", slider.comm.send({ method: "update", state: { value: 7 }, buffer_paths: [] }).done.catch(() => {}));
  assert.equal((await notebook.execute("print(s.value)")).text, "7\n");
  step("a widget arrives as it is, and what is done to it reaches the kernel");
}

function tellLogs() {
  const logs = readdirSync(directory, { recursive: true }).filter((name) => /kernel-[^/]*\.log$/.test(name));
  for (const log of logs) {
    console.error(`== ${log}\n${readFileSync(path.join(directory, log), "utf8").slice(-4_000)}`);
  }
}
