// A client on the official TypeScript SDK that a test drives: commands come as lines of JSON on standard input, and
// what the agent sends goes to standard output. Usage: node ts_client.mjs COMMAND ARGUMENTS...
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const agent = spawn(process.argv[2], process.argv.slice(3), { stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));

let asked = 0;
const answers = new Map();
const forward = (method) => async (context) => {
  const number = ++asked;
  say({ ask: number, method, params: context.params });
  const signal = context.signal;
  return await new Promise((resolve, reject) => {
    answers.set(number, { resolve, reject });
    signal?.addEventListener("abort", () => {
      say({ withdrawn: number });
      reject(signal.reason ?? new Error("cancelled"));
    });
  });
};

const app = acp.client({ name: "upcall-test" });
for (const method of ["session/request_permission", "elicitation/create", "fs/read_text_file", "fs/write_text_file"]) {
  app.onRequest(method, forward(method));
}
app.onNotification("session/update", (context) => say({ update: context.params }));
const connection = app.connect(stream);

agent.on("exit", (code, signal) => say({ exit: code ?? signal }));
const lines = createInterface({ input: process.stdin });
lines.on("line", async (line) => {
  const command = JSON.parse(line);
  if (command.answer !== undefined) {
    const waiting = answers.get(command.answer);
    answers.delete(command.answer);
    waiting?.resolve(command.result);
  } else if (command.notify !== undefined) {
    await connection.agent.notify(command.notify, command.params);
  } else if (command.request !== undefined) {
    try {
      say({ id: command.id, result: await connection.agent.request(command.request, command.params) });
    } catch (error) {
      say({ id: command.id, error: { code: error.code, message: String(error.message ?? error) } });
    }
  }
});
lines.on("close", () => {
  agent.stdin.end();
  setTimeout(() => process.exit(0), 3000).unref();
});
