// ZeroMQ behind the face of a WebSocket, so that @jupyterlab/services drives a kernel without a server between, as it does
// inside VS Code's Jupyter extension: four sockets with one routing id, no heartbeat, no high-water marks.

import { createHmac, randomUUID } from "node:crypto";
import { createRequire } from "node:module";

import * as zmq from "zeromq";

const require = createRequire(import.meta.url);
const { ServerConnection } = require("@jupyterlab/services");
const { KernelConnection } = require("@jupyterlab/services/lib/kernel/default");

const DELIMITER = "<IDS|MSG>";
const CHANNELS = { shell: zmq.Dealer, control: zmq.Dealer, stdin: zmq.Dealer, iopub: zmq.Subscriber };

/** The sockets to one kernel. A message that does not verify throws. */
class Wire {
  protocol = "";
  onopen = () => {};
  onmessage = () => {};
  onclose = () => {};
  onerror = () => {};

  constructor(connection, failed) {
    this.connection = connection;
    this.sockets = {};
    const routingId = randomUUID();
    for (const [channel, Socket] of Object.entries(CHANNELS)) {
      const options = { receiveHighWaterMark: 0, maxMessageSize: -1 };
      const dealer = { ...options, routingId, sendHighWaterMark: 0 };
      const socket = new Socket(Socket === zmq.Dealer ? dealer : options);
      socket.connect(`tcp://${connection.ip}:${connection[`${channel}_port`]}`);
      this.sockets[channel] = socket;
      this.read(channel, socket).catch(failed);
    }
    this.sockets.iopub.subscribe();
    setImmediate(() => this.onopen({ target: this }));
  }

  async read(channel, socket) {
    for await (const frames of socket) {
      if (this.closed) return;
      this.onmessage({ data: this.decode(channel, frames), type: "message", target: this });
    }
  }

  decode(channel, frames) {
    const at = frames.findIndex((frame) => frame.toString() === DELIMITER);
    const [signature, ...rest] = frames.slice(at + 1);
    const parts = rest.slice(0, 4);
    if (at < 0 || signature.toString() !== this.sign(parts)) throw new Error(`a message on ${channel} does not verify`);
    const [header, parent_header, metadata, content] = parts.map((part) => JSON.parse(part));
    return { channel, header, parent_header, metadata, content, buffers: rest.slice(4) };
  }

  sign(parts) {
    const mac = createHmac("sha256", this.connection.key);
    parts.forEach((part) => mac.update(part));
    return mac.digest("hex");
  }

  send(message) {
    const parts = ["header", "parent_header", "metadata", "content"].map((part) => JSON.stringify(message[part] ?? {}));
    this.sending = Promise.resolve(this.sending).then(() =>
      this.sockets[message.channel].send([DELIMITER, this.sign(parts), ...parts, ...(message.buffers ?? [])]),
    );
  }

  close() {
    this.closed = true;
    Object.values(this.sockets).forEach((socket) => socket.close());
  }
}

/** A kernel connection of @jupyterlab/services; `failed` is told of messages that cannot be read. */
export function connect(connection, failed) {
  let wire;
  const WebSocket = function () {
    wire = new Wire(connection, failed);
    return wire;
  };
  const unchanged = { serialize: (message) => message, deserialize: (message) => message };
  const kernel = new KernelConnection({
    model: { id: randomUUID(), name: connection.kernel_name },
    serverSettings: ServerConnection.makeSettings({
      WebSocket,
      baseUrl: "http://127.0.0.1:1/",
      wsUrl: "ws://127.0.0.1:1/",
      serializer: unchanged,
    }),
  });
  return { kernel, close: () => wire.close() };
}
