// What VS Code's Jupyter extension does with a notebook's kernel, in its order: start, start-up code, cells one at a time,
// questions that are answered from a thread of the kernel, interrupt, restart.

import { createRequire } from "node:module";

import { KernelProcess, sleep, within } from "./processes.mjs";
import { connect } from "./wire.mjs";

const { KernelMessage } = createRequire(import.meta.url)("@jupyterlab/services");

/** No single answer may take longer, a runtime's start included. */
const LIMIT = 60_000;

const VERSION_PROBE = `
try:
    import ipywidgets as _VSCODE_ipywidgets
    print("7f3c:IPyWidgets:" + _VSCODE_ipywidgets.__version__)
    del _VSCODE_ipywidgets
except:
    pass`;

const START_UP = (notebook) => `
def _VSCODE_wrap_run_cell():
    shell = get_ipython()
    original = shell.run_cell
    def run_cell(*args, **kwargs):
        return original(*args, **kwargs)
    shell.run_cell = run_cell
_VSCODE_wrap_run_cell()
del _VSCODE_wrap_run_cell
__vsc_ipynb_file__ = ${JSON.stringify(notebook)}
%config Completer.use_jedi = False
try:
    import matplotlib
    %matplotlib inline
    _VSCODE_defaults = dict(matplotlib.rcParams)
    matplotlib.rcParams.update(_VSCODE_defaults)
except:
    pass`;

const USERS_START_UP = "%load_ext autoreload\n%autoreload 2\nfrom_settings = 'yes'";

export class Notebook {
  constructor(argv, directory, environment) {
    Object.assign(this, { argv, directory, environment, file: `${directory}/a notebook.ipynb`, background: 0 });
  }

  /** Everything between "Select Kernel" and the first cell. What each step took is kept. */
  async open() {
    this.took = {};
    this.failures = [];
    this.messages = [];
    this.process = await KernelProcess.launch(this.argv, this.directory, this.environment);
    const { kernel, close } = connect(this.process.connection, (error) => this.failures.push(error));
    Object.assign(this, { kernel, close });
    kernel.anyMessage.connect((_, { msg, direction }) => direction === "recv" && this.messages.push(msg));
    await this.timed("connection", this.until(() => kernel.connectionStatus === "connected"));
    await this.timed("kernel_info", this.nudge());
    await this.timed("version probe", this.silently(VERSION_PROBE));
    await this.timed("start-up block", this.silently(START_UP(this.file)));
    await this.timed("user's start-up commands", this.silently(USERS_START_UP));
    await this.timed("kernel_info again", kernel.requestKernelInfo());
    await this.timed("idle", this.until(() => kernel.status === "idle"));
    this.warmUp = this.timed("warm-up", kernel.requestComplete({ code: "__file__.", cursor_pos: 9 }));
    this.warmUp.catch(() => {});
  }

  async timed(step, promise) {
    const begun = performance.now();
    const result = await within(LIMIT, step, promise);
    this.took[step] = performance.now() - begun;
    return result;
  }

  async until(condition) {
    while (!condition()) await sleep(5);
  }

  /** kernel_info on control and shell every 500 ms, until there is a reply and anything on iopub. */
  async nudge() {
    let replied = false;
    const heard = () => this.messages.some((message) => message.channel === "iopub");
    while (!replied || !heard()) {
      const asked = [this.kernel.requestKernelInfo(), this.control("kernel_info_request")];
      asked.forEach((answer) => answer.then(() => (replied = true)).catch(() => {}));
      const done = Promise.any(asked).then(() => this.until(heard));
      await Promise.race([done, sleep(500)]);
    }
  }

  /** A request on control; resolves with the reply when idle has come as well. */
  async control(msgType, channel = "control") {
    const { username, clientId: session } = this.kernel;
    const message = KernelMessage.createMessage({ msgType, channel, username, session, content: {} });
    const future = channel === "shell" ? this.kernel.sendShellMessage(message, true) : this.kernel.sendControlMessage(message, true);
    return within(LIMIT, msgType, future.done);
  }

  /** Code of the extension's own. */
  silently(code) {
    return this.execute(code, { store_history: false });
  }

  /** A cell; what it put out comes with the reply. `answer` is called with each prompt. */
  async execute(code, { store_history = true, answer, begun } = {}) {
    const future = this.kernel.requestExecute(
      { code, silent: false, store_history, allow_stdin: true, stop_on_error: false },
      false,
      { cellId: "a-cell" },
    );
    const outputs = [];
    let clear = false;
    future.onIOPub = ({ header: { msg_type: type }, content }) => {
      if (type === "status" || type === "execute_input") return;
      clear ||= type === "clear_output";
      if (type === "clear_output" && content.wait) return;
      if (clear) outputs.length = 0;
      clear = false;
      if (type !== "clear_output") outputs.push({ type, ...content });
      begun?.(outputs);
    };
    future.onStdin = ({ header, content }) => {
      const value = answer?.(content);
      if (value !== undefined) this.kernel.sendInputReply({ status: "ok", value }, header);
    };
    const reply = await within(LIMIT, code, future.done);
    const text = outputs.filter(({ type }) => type === "stream").map((output) => output.text);
    return { ...reply.content, outputs, text: text.join("") };
  }

  /**
   * Asks in a thread of the kernel: a display with an empty value comes at once, and its update with the answer when the
   * thread has it, which may be after idle. `undefined` where there is no display.
   */
  async ask(expression, { seconds = 0 } = {}) {
    const mime = `application/vnd.vscode.bg.execution.${this.background++}`;
    const reply = await this.silently(`
def __in_background__():
    from threading import Thread
    from IPython.display import display
    handle = display({"${mime}": ""}, raw=True, display_id=True)
    def work():
        import time, traceback
        time.sleep(${seconds})
        try:
            handle.update({"${mime}.result": ${expression}}, raw=True)
        except Exception:
            handle.update({"${mime}.error": traceback.format_exc()}, raw=True)
    Thread(target=work, daemon=True).start()
__in_background__()
del __in_background__`);
    const first = reply.outputs.find((output) => output.data && mime in output.data);
    if (!first) return undefined;
    const isAnswer = ({ header, content }) =>
      header.msg_type === "update_display_data" &&
      content.transient?.display_id === first.transient.display_id &&
      (`${mime}.result` in content.data || `${mime}.error` in content.data);
    await within(LIMIT, expression, this.until(() => this.messages.some(isAnswer)));
    const { data } = this.messages.find(isAnswer).content;
    if (`${mime}.error` in data) throw new Error(data[`${mime}.error`]);
    return data[`${mime}.result`];
  }

  /** Ends the process without a word, as restart and close do; milliseconds until it was gone. */
  async kill(signal = "SIGTERM") {
    const took = await this.process.kill(signal);
    this.kernel.dispose();
    this.close();
    return took;
  }
}
