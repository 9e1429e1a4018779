/** As much of VS Code as the extension uses, for tests of how it is wired. */

type Call = (...args: never[]) => unknown;

export const registered = new Map<string, Call>();
export const settings: Record<string, unknown> = {};
export const shown: string[] = [];
export const opened: string[] = [];
export const listeners: Record<"trust" | "settings" | "python", Call[]> = { trust: [], settings: [], python: [] };
export const state = { isTrusted: true, python: undefined as string | undefined };

const disposable = { dispose: (): void => undefined };

function on(name: keyof typeof listeners) {
  return (call: Call) => {
    listeners[name].push(call);
    return disposable;
  };
}

export const ProgressLocation = { Notification: 15 };
export const Uri = { file: (path: string) => ({ fsPath: path, scheme: "file" }) };
export const env = {
  openExternal: async (uri: { fsPath: string }) => opened.push(uri.fsPath),
};
export const window = {
  createOutputChannel: () => ({ append: () => undefined, appendLine: () => undefined, show: () => undefined, dispose: () => undefined }),
  showErrorMessage: async (text: string) => void shown.push(text),
  showInformationMessage: async (text: string) => void shown.push(text),
  showQuickPick: async (items: unknown[]) => items[0],
  showInputBox: async () => "1GiB",
  withProgress: (_: unknown, task: (progress: unknown, token: unknown) => Promise<unknown>) =>
    task({}, { onCancellationRequested: () => disposable }),
};
export const workspace = {
  workspaceFolders: [{ uri: { fsPath: "/projects/model" } }],
  get isTrusted() {
    return state.isTrusted;
  },
  getConfiguration: (section: string) => ({
    get: (name: string, otherwise: unknown) => settings[`${section}.${name}`] ?? otherwise,
  }),
  onDidGrantWorkspaceTrust: on("trust"),
  onDidChangeConfiguration: on("settings"),
};
export const commands = {
  registerCommand: (name: string, call: Call) => {
    registered.set(name, call);
    return disposable;
  },
};
export const extensions = {
  getExtension: () =>
    state.python === undefined
      ? undefined
      : {
          isActive: false,
          activate: async () => ({
            environments: {
              getActiveEnvironmentPath: () => ({ path: state.python }),
              resolveEnvironment: async () => ({ executable: { uri: { fsPath: state.python } } }),
              onDidChangeActiveEnvironmentPath: on("python"),
            },
          }),
        },
};
