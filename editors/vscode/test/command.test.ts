import assert from "node:assert/strict";
import { test } from "node:test";

import { jaxresid, serverOptions, type Choice } from "../src/command";

const nothing: Choice = {
  configured: [],
  python: undefined,
  folders: ["/projects/model"],
  isTrusted: true,
  isWindows: false,
  exists: () => false,
};
const here = "/projects/model/.venv/bin/jaxresid";

test("the settings come first", () => {
  const choice = { ...nothing, configured: ["uv", "run", "jaxresid"], python: "/envs/a/bin/python", exists: () => true };
  assert.deepEqual(jaxresid(choice), ["uv", "run", "jaxresid"]);
});

test("then the chosen environment, if jaxresid is in it", () => {
  const choice = { ...nothing, python: "/envs/a/bin/python", exists: () => true };
  assert.deepEqual(jaxresid(choice), ["/envs/a/bin/jaxresid"]);
  assert.deepEqual(jaxresid({ ...choice, exists: (path) => path === here }), [here]);
});

test("then .venv of the first folder that has it, then PATH", () => {
  const folders = ["/projects/data", "/projects/model"];
  assert.deepEqual(jaxresid({ ...nothing, folders, exists: (path) => path === here }), [here]);
  assert.deepEqual(jaxresid(nothing), ["jaxresid"]);
});

test("on Windows programs are in Scripts", () => {
  const found = jaxresid({ ...nothing, isWindows: true, exists: () => true });
  assert.deepEqual(found, ["/projects/model/.venv/Scripts/jaxresid.exe"]);
});

test("nothing that lies in a workspace is run before it is trusted", () => {
  const choice = { ...nothing, isTrusted: false, python: "/projects/model/env/bin/python", exists: () => true };
  assert.deepEqual(jaxresid(choice), ["jaxresid"]);
  assert.deepEqual(serverOptions("/projects/model/env/bin/python", "/envs/a/bin/python", false), { trusted: false });
});

test("the server is told the interpreter of the settings, then the chosen one, if any", () => {
  assert.deepEqual(serverOptions("/b/python", "/a/python", true), { trusted: true, interpreter: "/b/python" });
  assert.deepEqual(serverOptions("", "/a/python", true), { trusted: true, interpreter: "/a/python" });
  assert.deepEqual(serverOptions("", undefined, true), { trusted: true });
});
