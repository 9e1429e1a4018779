/** The server itself, told what the extension tells it. JAXRESID names the program; without it nothing runs. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { createMessageConnection, StreamMessageReader, StreamMessageWriter } from "vscode-jsonrpc/node";

import { serverOptions } from "../src/command";

interface Capabilities {
  readonly executeCommandProvider: { readonly commands: readonly string[] };
}

const program = process.env.JAXRESID;
const SOURCE = "import jax\n\nloss = jax.checkpoint(lambda x: x, policy=jax.checkpoint_policies.nothing_saveable())\n";

test("it starts, finds what is wrong, and ends", { skip: program === undefined }, async () => {
  const folder = mkdtempSync(join(tmpdir(), "jaxresid-server-"));
  writeFileSync(join(folder, "pyproject.toml"), "[tool.jaxresid]\n");
  const server = spawn(program ?? "", ["server"], { stdio: ["pipe", "pipe", "inherit"] });
  const connection = createMessageConnection(new StreamMessageReader(server.stdout), new StreamMessageWriter(server.stdin));
  const published = new Promise<{ diagnostics: { code: string }[] }>((resolve) => {
    connection.onNotification("textDocument/publishDiagnostics", resolve);
  });
  connection.listen();
  const rootUri = pathToFileURL(folder).href;
  const { capabilities } = await connection.sendRequest<{ capabilities: Capabilities }>("initialize", {
    processId: process.pid,
    rootUri,
    workspaceFolders: [{ uri: rootUri, name: "here" }],
    capabilities: {},
    initializationOptions: serverOptions("", undefined, false),
  });
  const asked = [...readFileSync("src/flows.ts", "utf8").matchAll(/execute(?:<[^(]*>)?\("([^"]+)"/g)].map((found) => found[1]);
  assert.equal(new Set(asked).size, 4);
  for (const command of asked) assert.ok(capabilities.executeCommandProvider.commands.includes(command ?? ""), command);
  await connection.sendNotification("initialized", {});
  const uri = pathToFileURL(join(folder, "train.py")).href;
  const textDocument = { uri, languageId: "python", version: 1, text: SOURCE };
  await connection.sendNotification("textDocument/didOpen", { textDocument });
  const { diagnostics } = await published;
  assert.ok(diagnostics.some((each) => each.code.startsWith("JXR")), JSON.stringify(diagnostics));
  await connection.sendRequest("shutdown");
  const ended = new Promise((resolve) => server.on("exit", resolve));
  await connection.sendNotification("exit");
  assert.equal(await ended, 0);
  connection.dispose();
});
