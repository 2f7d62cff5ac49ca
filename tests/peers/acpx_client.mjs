// A host of acpx's runtime that a test drives, as ts_client.mjs does. Usage: node acpx_client.mjs STATE COMMAND...
import { createInterface } from "node:readline";
import { createAcpRuntime, createFileSessionStore } from "acpx/runtime";

const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const [stateDir, ...command] = process.argv.slice(2);

let asked = 0;
const answers = new Map();
const ask = (method, params, signal) => {
  const number = ++asked;
  say({ ask: number, method, params });
  return new Promise((resolve, reject) => {
    answers.set(number, resolve);
    signal?.addEventListener("abort", () => {
      say({ withdrawn: number });
      reject(signal.reason ?? new Error("cancelled"));
    });
  });
};
const kindOf = (request, optionId) => request.options.find((option) => option.optionId === optionId)?.kind;
const onPermissionRequest = async (request, { signal }) => {
  const { outcome } = await ask("session/request_permission", request.raw, signal);
  if (outcome.outcome !== "selected") return { outcome: "cancel" };
  return { outcome: kindOf(request.raw, outcome.optionId) };
};
const onElicitation = (request, { signal }) => ask("elicitation/create", request, signal);

const runtime = createAcpRuntime({
  cwd: process.cwd(),
  sessionStore: createFileSessionStore({ stateDir }),
  agentRegistry: { resolve: () => command, list: () => ["upcall"] },
  permissionMode: "deny-all",
  elicitationModes: ["form"],
  mcpServers: JSON.parse(process.env.ACPX_TEST_MCP ?? "[]"),
  onPermissionRequest,
});

const handles = new Map();
const turns = new Map();
let requests = 0;

async function open(sessionKey, cwd, resumeSessionId) {
  const handle = await runtime.ensureSession({ sessionKey, agent: "upcall", mode: "persistent", cwd, resumeSessionId });
  handles.set(handle.backendSessionId, handle);
  return { sessionId: handle.backendSessionId };
}

async function prompt({ sessionId, prompt }) {
  const handle = handles.get(sessionId);
  const turn = runtime.startTurn({
    handle, text: prompt[0].text, mode: "prompt", requestId: `r${++requests}`, onPermissionRequest, onElicitation,
  });
  turns.set(sessionId, turn);
  for await (const event of turn.events) say({ event });
  const result = await turn.result;
  if (result.status === "failed") throw new Error(result.error.message);
  return { stopReason: result.stopReason ?? result.status };
}

const operations = {
  "session/new": ({ cwd }) => open("test", cwd),
  "session/load": ({ cwd, sessionId }) => open("test", cwd, sessionId),
  "session/prompt": prompt,
};
const lines = createInterface({ input: process.stdin });
lines.on("line", async (line) => {
  const given = JSON.parse(line);
  if (given.answer !== undefined) {
    answers.get(given.answer)?.(given.result);
    answers.delete(given.answer);
  } else if (given.notify === "session/cancel") {
    await turns.get(given.params.sessionId)?.cancel();
  } else if (given.request !== undefined) {
    try {
      say({ id: given.id, result: await operations[given.request](given.params) });
    } catch (error) {
      say({ id: given.id, error: { message: String(error?.stack ?? error) } });
    }
  }
});
lines.on("close", async () => {
  await runtime.shutdown?.();
  process.exit(0);
});
