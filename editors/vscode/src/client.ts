/** The language server: start it as the settings say, start it anew when they change. */

import { existsSync } from "node:fs";
import * as vscode from "vscode";
import { LanguageClient, State } from "vscode-languageclient/node";

import { jaxresid, serverOptions } from "./command";
import { chosenPython } from "./python";

/** Settings after whose change the server is started anew. */
const DECIDING = ["jaxresid.command", "jaxresid.interpreter"];

/** Return whether a change of settings asks for another server. */
export function needsRestart(change: vscode.ConfigurationChangeEvent): boolean {
  return DECIDING.some((name) => change.affectsConfiguration(name));
}

export class Server implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private starting: Promise<void> = Promise.resolve();

  constructor(private readonly output: vscode.OutputChannel) {}

  /** The command that the server was started by, without arguments. */
  command: readonly string[] = [];

  /** Start the server, in place of the one that runs; one start waits for another. */
  restart(): Promise<void> {
    this.starting = this.starting.then(() => this.startAnew());
    return this.starting;
  }

  private async startAnew(): Promise<void> {
    await this.stop();
    const settings = vscode.workspace.getConfiguration("jaxresid");
    const python = await chosenPython();
    const isTrusted = vscode.workspace.isTrusted;
    this.command = jaxresid({
      configured: settings.get<string[]>("command", []),
      python,
      folders: (vscode.workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath),
      isTrusted,
      isWindows: process.platform === "win32",
      exists: existsSync,
    });
    const [command = "jaxresid", ...args] = this.command;
    this.output.appendLine(`starting ${[...this.command, "server"].join(" ")}`);
    const client = new LanguageClient(
      "jaxresid",
      "jaxresid",
      { command, args: [...args, "server"] },
      {
        documentSelector: [
          { scheme: "file", language: "python" },
          { scheme: "untitled", language: "python" },
        ],
        initializationOptions: serverOptions(settings.get("interpreter", ""), python, isTrusted),
        outputChannel: this.output,
      },
    );
    this.client = client;
    try {
      await client.start();
    } catch (error) {
      this.output.appendLine(String(error));
      const said = `The server did not start: ${[...this.command, "server"].join(" ")}. It needs pip install 'jaxresid[server]'.`;
      void vscode.window.showErrorMessage(said, "Show output").then((chosen) => chosen && this.output.show());
    }
  }

  /** Return what a command of the server returns; undefined where none runs or it refused, which is said. */
  async execute<T>(command: string, ...args: unknown[]): Promise<T | undefined> {
    await this.starting;
    if (this.client?.state !== State.Running) {
      void vscode.window.showErrorMessage("The jaxresid server does not run; see its output.");
      return undefined;
    }
    try {
      return await this.client.sendRequest<T>("workspace/executeCommand", { command, arguments: args });
    } catch (error) {
      void vscode.window.showErrorMessage(error instanceof Error ? error.message : String(error));
      return undefined;
    }
  }

  private async stop(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    if (client?.state === State.Running) await client.dispose();
  }

  dispose(): Promise<void> {
    return this.stop();
  }
}
