// An agent of the tests: its handler says that it has begun, and waits until it may go on.
import { existsSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Agent } from "../../../examples/wire/agent.mjs";

const { FLOWENGINE_URL, FLOWENGINE_TOKEN, TRACES } = process.env;
const agent = new Agent(FLOWENGINE_URL, FLOWENGINE_TOKEN, {
  Work: async ({ x }, task) => {
    writeFileSync(`${TRACES}/begun-${process.pid}-${x}`, "");
    while (!existsSync(`${TRACES}/go-${process.pid}`) && !existsSync(`${TRACES}/go`)) await sleep(10);
    if (x === "fail") throw new TypeError("it does not fit");
    return { y: process.pid };
  },
});
process.on("SIGTERM", () => agent.stop());
await agent.run();
console.log("stopped");
