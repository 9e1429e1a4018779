/** How the extension is wired, with a VS Code and a client of the tests' own. */

import assert from "node:assert/strict";
import { chmodSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, test } from "node:test";
import * as vscode from "vscode";
import * as languageclient from "vscode-languageclient/node";

import { activate } from "../src/extension";
import type * as fakeClient from "./fakes/languageclient";
import type * as fakeVscode from "./fakes/vscode";

const editor = vscode as unknown as typeof fakeVscode;
const client = languageclient as unknown as typeof fakeClient;

beforeEach(() => {
  client.started.length = 0;
  editor.shown.length = 0;
  for (const name of Object.keys(editor.settings)) delete editor.settings[name];
  for (const calls of Object.values(editor.listeners)) calls.length = 0;
  Object.assign(editor.state, { isTrusted: true, python: undefined });
  client.control.fails = false;
});

async function activated(): Promise<void> {
  await activate({ subscriptions: [] } as unknown as vscode.ExtensionContext);
}

function call(command: string): Promise<void> {
  return (editor.registered.get(command) as () => Promise<void>)();
}

function changed(name: string): unknown {
  const change = { affectsConfiguration: (asked: string) => asked === name };
  return Promise.all(editor.listeners.settings.map((listener) => listener(change as never)));
}

test("the server is started by the command of the settings, and told what it may do", async () => {
  editor.settings["jaxresid.command"] = ["uv", "run", "jaxresid"];
  editor.settings["jaxresid.interpreter"] = "/a/python";
  await activated();
  assert.deepEqual(client.started[0]?.server, { command: "uv", args: ["run", "jaxresid", "server"] });
  assert.deepEqual(client.started[0]?.options.initializationOptions, { trusted: true, interpreter: "/a/python" });
});

test("it is started anew when the workspace is trusted, a program is set or another Python is chosen", async () => {
  Object.assign(editor.state, { isTrusted: false, python: "/envs/a/bin/python" });
  await activated();
  assert.deepEqual(client.started[0]?.options.initializationOptions, { trusted: false });
  editor.state.isTrusted = true;
  await editor.listeners.trust[0]?.();
  assert.deepEqual(client.started[1]?.options.initializationOptions, { trusted: true, interpreter: "/envs/a/bin/python" });
  await changed("jaxresid.interpreter");
  await changed("jaxresid.place");
  await editor.listeners.python[0]?.();
  assert.equal(client.started.length, 4);
  const running = client.started.filter((each) => each.state === client.State.Running);
  assert.deepEqual(running, [client.started[3]]);
});

test("a server that does not start, and one that refuses, are said in a line", async () => {
  client.control.fails = true;
  await activated();
  assert.match(editor.shown[0] ?? "", /pip install 'jaxresid\[server\]'/);
  await call("jaxresid.traceTarget");
  assert.match(editor.shown[1] ?? "", /does not run/);
  client.control.fails = false;
  await call("jaxresid.restart");
  client.answers["jaxresid.targets"] = new Error("pyproject.toml:3: no such target");
  await call("jaxresid.traceTarget");
  assert.equal(editor.shown[2], "pyproject.toml:3: no such target");
});

test("the page of a target is written by its own Python, and opened", async () => {
  const folder = mkdtempSync(join(tmpdir(), "jaxresid-page-"));
  const python = join(folder, "python");
  writeFileSync(python, '#!/bin/sh\necho "$PWD $*" > asked\nwhile [ $# -gt 1 ]; do shift; done\necho page > "$1"\n');
  chmodSync(python, 0o755);
  editor.settings["jaxresid.interpreter"] = python;
  client.answers["jaxresid.targets"] = [{ name: "gpt", folder }];
  await activated();
  await call("jaxresid.openPage");
  const page = editor.opened.at(-1) ?? "";
  assert.equal(readFileSync(page, "utf8"), "page\n");
  assert.equal(readFileSync(join(folder, "asked"), "utf8"), `${folder} -m jaxresid report gpt -o ${page}\n`);
  writeFileSync(python, "#!/bin/sh\necho 'jaxresid: error: no function gpt' >&2; exit 2\n");
  await call("jaxresid.openPage");
  assert.equal(editor.shown.at(-1), "jaxresid: error: no function gpt");
});
