/** The Python that is chosen in the Python extension. */

import * as vscode from "vscode";

/** What is used of the Python extension's interface. */
interface PythonExtension {
  readonly environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { readonly path: string };
    resolveEnvironment(path: { readonly path: string }): Promise<{ readonly executable: { readonly uri?: vscode.Uri } } | undefined>;
    readonly onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

async function extension(): Promise<PythonExtension | undefined> {
  const found = vscode.extensions.getExtension<PythonExtension>("ms-python.python");
  if (found === undefined) return undefined;
  const made = found.isActive ? found.exports : await found.activate();
  return made?.environments === undefined ? undefined : made;
}

/** Return the path of the chosen Python; undefined without the extension or a choice. */
export async function chosenPython(): Promise<string | undefined> {
  const python = await extension();
  if (python === undefined) return undefined;
  const chosen = python.environments.getActiveEnvironmentPath(vscode.workspace.workspaceFolders?.[0]?.uri);
  return (await python.environments.resolveEnvironment(chosen))?.executable.uri?.fsPath;
}

/** Call back whenever another Python is chosen. */
export async function onOtherPython(call: () => void): Promise<vscode.Disposable | undefined> {
  return (await extension())?.environments.onDidChangeActiveEnvironmentPath(call);
}
