/** The jaxresid extension: the language server, and the commands that ask it to trace and plan. */

import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as vscode from "vscode";

import { needsRestart, Server } from "./client";
import { applyPlan, chosenTarget, plan, trace, type Person } from "./flows";
import { chosenPython, onOtherPython } from "./python";
import { run } from "./run";

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const output = vscode.window.createOutputChannel("jaxresid");
  const server = new Server(output);
  const restart = (): Promise<void> => server.restart();
  context.subscriptions.push(
    output,
    server,
    vscode.commands.registerCommand("jaxresid.restart", restart),
    vscode.commands.registerCommand("jaxresid.showOutput", () => output.show()),
    vscode.commands.registerCommand("jaxresid.traceTarget", () => trace(server, person)),
    vscode.commands.registerCommand("jaxresid.planTarget", () => plan(server, person, place())),
    vscode.commands.registerCommand("jaxresid.applyTarget", () => applyPlan(server, person)),
    vscode.commands.registerCommand("jaxresid.openPage", () => openPage(server, output)),
    vscode.workspace.onDidGrantWorkspaceTrust(restart),
    vscode.workspace.onDidChangeConfiguration((change) => needsRestart(change) && restart()),
  );
  await server.restart();
  const watch = await onOtherPython(restart);
  if (watch !== undefined) context.subscriptions.push(watch);
}

function place(): string {
  return vscode.workspace.getConfiguration("jaxresid").get("place", "");
}

async function openPage(server: Server, output: vscode.OutputChannel): Promise<void> {
  const target = await chosenTarget(server, person);
  if (target === undefined) return;
  const python = vscode.workspace.getConfiguration("jaxresid").get("interpreter", "") || (await chosenPython());
  const command = python ? [python, "-m", "jaxresid"] : server.command;
  const page = join(mkdtempSync(join(tmpdir(), "jaxresid-")), "report.html");
  const options = { location: vscode.ProgressLocation.Notification, title: `Tracing ${target.name}`, cancellable: true };
  const ended = await vscode.window.withProgress(options, (_, token) =>
    run([...command, "report", target.name, "-o", page], target.folder, token, (text) => output.append(text)),
  );
  if (ended.code === 0) await vscode.env.openExternal(vscode.Uri.file(page));
  else if (ended.said) void vscode.window.showErrorMessage(ended.said);
}

const person: Person = {
  async pick(title, items) {
    const numbered = items.map((item, number) => ({ ...item, number }));
    return (await vscode.window.showQuickPick(numbered, { title }))?.number;
  },
  async write(title, prompt, placeHolder) {
    return vscode.window.showInputBox({ title, prompt, placeHolder });
  },
  tell(text) {
    void vscode.window.showInformationMessage(text);
  },
};
