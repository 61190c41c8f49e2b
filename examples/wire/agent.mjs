// An agent in JavaScript: it registers, claims tasks over HTTP, works, and reports. Node 20 or
// later, no packages. The protocol: docs/sdk/wire-protocol.md.
//
//   FLOWENGINE_URL=http://127.0.0.1:8080 FLOWENGINE_TOKEN=fe_… node agent.mjs
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

class Refused extends Error {
  constructor(status, { code, message, hint }) {
    super(`${status} ${code}: ${message}${hint ? ` (${hint})` : ""}`);
    Object.assign(this, { status, code });
  }
}

export class Agent {
  #url;
  #token;
  #handlers;
  #options;
  #held = new Map(); // task id -> the task, with `abort`
  #server = null;
  #stopping = new AbortController();

  constructor(url, token, handlers, options = {}) {
    this.#url = url.replace(/\/$/, "");
    this.#token = token;
    this.#handlers = handlers;
    this.#options = { taskList: "default", concurrency: 4, waitSeconds: 20, ...options };
  }

  /** Work until `stop`. */
  async run() {
    await this.#register();
    const beats = this.#beat();
    const workers = Array.from({ length: this.#options.concurrency }, () => this.#work());
    await Promise.all(workers);
    await this.#call("DELETE", `/v1/servers/${this.#server.server_id}`);
    await beats;
  }

  /** Claim no more; running handlers finish. */
  stop() {
    this.#stopping.abort();
  }

  get #isStopping() {
    return this.#stopping.signal.aborted;
  }

  async #register() {
    this.#server = await this.#call("POST", "/v1/servers", {
      handlers: Object.keys(this.#handlers),
      task_lists: [this.#options.taskList],
      service_name: "node-agent",
    });
    console.log(`server ${this.#server.server_id}`);
  }

  async #beat() {
    const pause = this.#server.heartbeat_interval_ms;
    while (!this.#isStopping) {
      await sleep(pause, null, { signal: this.#stopping.signal }).catch(() => {});
      if (this.#isStopping) return;
      const held = [...this.#held.values()].map(({ task_id, lease }) => ({ task_id, lease }));
      try {
        const path = `/v1/servers/${this.#server.server_id}/heartbeat`;
        const { lost } = await this.#call("POST", path, { held });
        for (const { task_id, lease } of lost) {
          const task = this.#held.get(task_id);
          if (task?.lease === lease) task.abort.abort(); // nobody wants the result any more
        }
      } catch (problem) {
        if (problem.code !== "server_gone" && problem.code !== "unknown_server") throw problem;
        await this.#register();
      }
    }
  }

  async #work() {
    while (!this.#isStopping) {
      for (const task of await this.#claim()) await this.#handle(task);
    }
  }

  async #claim() {
    const wanted = {
      server_id: this.#server.server_id,
      task_list: this.#options.taskList,
      wait_seconds: this.#options.waitSeconds,
      request_id: randomUUID(), // a repeated request gets the same tasks
    };
    try {
      return (await this.#call("POST", "/v1/tasks/claim", wanted, this.#stopping.signal)).tasks;
    } catch (problem) {
      if (this.#isStopping) return [];
      if (problem.code !== "server_gone" && problem.code !== "unknown_server") throw problem;
      await this.#register();
      return [];
    }
  }

  async #handle(task) {
    const handler = this.#handlers[task.facet] ?? this.#handlers[task.facet.split(".").pop()];
    task.abort = new AbortController();
    this.#held.set(task.task_id, task);
    const path = `/v1/tasks/${task.task_id}`;
    const context = {
      ...task,
      signal: task.abort.signal,
      // Restarts the timeout of the task; false: its result is not wanted.
      heartbeat: async (progress = null) =>
        (await this.#call("POST", `${path}/heartbeat`, { lease: task.lease, progress })).wanted,
    };
    try {
      let verb = "continue";
      let report;
      try {
        report = { result: (await handler(task.arguments, context)) ?? {} };
      } catch (problem) {
        verb = "fail";
        const error = { type: problem.name, message: problem.message, traceback: problem.stack };
        report = { error, retryable: problem.retryable ?? true };
      }
      await this.#call("POST", `${path}/${verb}`, { lease: task.lease, ...report });
    } catch (problem) {
      // The lease is lost, or the result was refused: the engine has decided about the step.
      if (!(problem instanceof Refused)) throw problem;
      console.error(`${task.path}: ${problem.message}`);
    } finally {
      this.#held.delete(task.task_id);
    }
  }

  /** Send a request; repeat it, later each time, while the server is away or busy. */
  async #call(method, path, document, signal) {
    for (let pause = 100; ; pause = Math.min(2 * pause, 10_000)) {
      let wait = pause * (0.5 + Math.random());
      try {
        const response = await fetch(this.#url + path, {
          method,
          signal,
          headers: { authorization: `Bearer ${this.#token}`, "content-type": "application/json" },
          body: document === undefined ? undefined : JSON.stringify(document),
        });
        const answer = await response.json();
        if (response.ok) return answer;
        if (![429, 500, 502, 503, 504].includes(response.status)) {
          throw new Refused(response.status, answer.error);
        }
        wait = Math.max(wait, 1000 * Number(response.headers.get("retry-after") ?? 0));
      } catch (problem) {
        if (problem instanceof Refused || signal?.aborted) throw problem;
        console.error(`${method} ${path}: ${problem.cause?.code ?? problem.message}; again soon`);
      }
      await sleep(wait);
    }
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const agent = new Agent(process.env.FLOWENGINE_URL, process.env.FLOWENGINE_TOKEN, {
    "billing.ProcessPayment": async ({ customer, cents }) => {
      if (cents <= 0) throw Object.assign(new Error("nothing to pay"), { retryable: false });
      return { receipt: `${cents} cents of ${customer}` };
    },
  });
  for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => agent.stop());
  await agent.run();
}
