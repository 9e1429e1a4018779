import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const manifest = JSON.parse(readFileSync("package.json", "utf8"));
const source = readdirSync("src").map((name) => readFileSync(`src/${name}`, "utf8")).join("\n");

test("every command of the palette is registered, and no other", () => {
  const contributed = manifest.contributes.commands.map((each: { command: string }) => each.command).sort();
  const registered = [...source.matchAll(/registerCommand\("([^"]+)"/g)].map((found) => found[1]).sort();
  assert.deepEqual(registered, contributed);
});

test("every setting is read", () => {
  for (const name of Object.keys(manifest.contributes.configuration.properties)) {
    if (name === "jaxresid.trace.server") continue; // vscode-languageclient reads it
    assert.ok(source.includes(`"${name.replace("jaxresid.", "")}"`), name);
  }
});

test("settings that name programs are not taken from a workspace that is not trusted", () => {
  const { restrictedConfigurations, supported } = manifest.capabilities.untrustedWorkspaces;
  assert.equal(supported, "limited");
  assert.deepEqual(restrictedConfigurations, ["jaxresid.command", "jaxresid.interpreter"]);
});

test("what runs a target is offered in trusted workspaces alone", () => {
  const trusting = manifest.contributes.commands.filter((each: { enablement?: string }) => each.enablement === "isWorkspaceTrusted");
  const named = trusting.map((each: { command: string }) => each.command);
  assert.deepEqual(named, ["jaxresid.traceTarget", "jaxresid.planTarget", "jaxresid.applyTarget", "jaxresid.openPage"]);
});
