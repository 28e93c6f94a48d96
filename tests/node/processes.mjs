// A local Colab, and kernel processes started as VS Code starts them.

import { execFileSync, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import net from "node:net";
import path from "node:path";
import { createInterface } from "node:readline";

const BINARY = process.env.COLAB_KERNEL_BIN;

export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Waits for a promise; what it waits for is named when it takes too long. */
export async function within(milliseconds, what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${milliseconds} ms`)), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** `colab-kernel emulate`. */
export class Emulator {
  static async start(...quirks) {
    const emulator = new Emulator();
    const settings = quirks.flatMap((quirk) => ["--quirk", quirk]);
    emulator.process = spawn(BINARY, ["emulate", "--port", "0", ...settings], { stdio: ["ignore", "pipe", "inherit"] });
    for await (const line of createInterface({ input: emulator.process.stdout })) {
      emulator.endpoint ??= line.match(/^export COLAB_KERNEL_ENDPOINT=(.*)/)?.[1];
      if (line.startsWith("export COLAB_KERNEL_TOKEN=")) break;
    }
    if (!emulator.endpoint) throw new Error("the emulator did not start");
    emulator.process.stdout.resume();
    return emulator;
  }

  async call(token, name, args) {
    const response = await fetch(this.endpoint, {
      method: "POST",
      headers: {
        authorization: `Bearer ${token}`,
        "content-type": "application/json",
        accept: "application/json, text/event-stream",
      },
      body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name, arguments: args } }),
    });
    const text = await response.text();
    const events = text.split("\n").filter((line) => line.startsWith("data:") && line.includes('"result"'));
    return JSON.parse(events.length ? events.at(-1).slice(5) : text).result.structuredContent;
  }

  async runtimes(token) {
    return (await this.call(token, "list_runtimes", {})).runtimes ?? [];
  }

  async sessions(token) {
    const names = [];
    for (const { name } of await this.runtimes(token)) {
      const { sessions = [] } = await this.call(token, "list_sessions", { parent: name });
      names.push(...sessions.map((session) => session.name));
    }
    return names;
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill("SIGTERM");
    await within(30_000, "the emulator's end", ended);
  }
}

/** Installs the kernelspec; its argv. */
export function installedArgv(directory) {
  execFileSync(BINARY, ["install", "--prefix", directory], { timeout: 60_000 });
  const spec = path.join(directory, "share", "jupyter", "kernels", "colab", "kernel.json");
  return JSON.parse(readFileSync(spec)).argv;
}

/** A process whose ports have been seen to accept connections. */
export class KernelProcess {
  static async launch(argv, directory, environment) {
    const kernel = new KernelProcess();
    const ports = await freePorts(5);
    kernel.connection = {
      transport: "tcp",
      ip: "127.0.0.1",
      key: randomUUID(),
      signature_scheme: "hmac-sha256",
      kernel_name: "colab",
      control_port: ports[0],
      hb_port: ports[1],
      shell_port: ports[2],
      stdin_port: ports[3],
      iopub_port: ports[4],
    };
    const runtime = path.join(directory, "a path with blanks");
    mkdirSync(runtime, { recursive: true });
    const file = path.join(runtime, `kernel-v2-${process.pid} ${randomUUID()}.json`);
    writeFileSync(file, JSON.stringify(kernel.connection), { mode: 0o600 });
    const [program, ...args] = argv.map((argument) => argument.replace("{connection_file}", file));
    kernel.process = spawn(program, args, { env: { ...process.env, ...environment }, stdio: ["pipe", "pipe", "pipe"] });
    kernel.stderr = "";
    kernel.process.stderr.on("data", (data) => (kernel.stderr += data));
    kernel.process.stdout.resume();
    kernel.exit = new Promise((resolve) => kernel.process.once("exit", (code, signal) => resolve({ code, signal })));
    const died = kernel.exit.then(() => {
      throw new Error(`the kernel died: ${kernel.stderr}`);
    });
    const open = ["shell", "iopub"].map((name) => accepts(kernel.connection[`${name}_port`]));
    died.catch(() => {});
    await within(60_000, "the ports", Promise.race([Promise.all(open), died]));
    return kernel;
  }

  /** Sends a signal; how many milliseconds it took to end. */
  async kill(signal) {
    const begun = performance.now();
    this.process.kill(signal);
    await within(10_000, `the end after ${signal}`, this.exit);
    return performance.now() - begun;
  }
}

/** Free ports, looked for from 9000 up; others on the machine may be looking at the same moment. */
async function freePorts(count) {
  const ports = [];
  for (let port = 9000 + 10 * (process.pid % 400); ports.length < count; port++) {
    if (await isFree(port)) ports.push(port);
  }
  return ports;
}

function isFree(port) {
  return new Promise((resolve) => {
    const server = net.createServer();
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}

/** Connects and hangs up every 200 ms, without a word, until somebody listens. */
async function accepts(port) {
  for (;;) {
    const open = await new Promise((resolve) => {
      const socket = net.connect(port, "127.0.0.1");
      socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
      socket.once("connect", () => socket.destroy());
    });
    if (open) return;
    await sleep(200);
  }
}
