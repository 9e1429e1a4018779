/** Which jaxresid to start, and what to tell its server. Nothing here knows VS Code. */

import { join } from "node:path";

/** What decides which jaxresid is started. */
export interface Choice {
  /** The setting `jaxresid.command`; empty where it is not set. */
  readonly configured: readonly string[];
  /** The Python chosen in the Python extension, if any. */
  readonly python: string | undefined;
  /** The folders that are open. */
  readonly folders: readonly string[];
  /** Whether the person trusts the workspace, and with it programs that lie in it. */
  readonly isTrusted: boolean;
  readonly isWindows: boolean;
  /** Return whether there is a file. */
  readonly exists: (path: string) => boolean;
}

/**
 * Return the command that starts jaxresid, without arguments.
 *
 * That of the settings, of the chosen environment, of `.venv` in a folder, or of PATH. A workspace
 * that is not trusted is asked for none of the middle two: its program would be run.
 */
export function jaxresid(choice: Choice): string[] {
  if (choice.configured.length > 0) return [...choice.configured];
  if (choice.isTrusted) {
    const environments = choice.folders.map((folder) => join(folder, ".venv", choice.isWindows ? "Scripts" : "bin"));
    if (choice.python !== undefined) environments.unshift(join(choice.python, ".."));
    const name = choice.isWindows ? "jaxresid.exe" : "jaxresid";
    const found = environments.map((folder) => join(folder, name)).find(choice.exists);
    if (found !== undefined) return [found];
  }
  return ["jaxresid"];
}

/** What the server is told when it is started. */
export interface ServerOptions {
  /** False: nothing of the workspace is run, whatever a client asks for. */
  readonly trusted: boolean;
  /** The Python that traces targets; the server finds one where it is missing. */
  readonly interpreter?: string;
}

/**
 * Return what the server is told when it is started.
 *
 * @param configured - The setting `jaxresid.interpreter`; empty where it is not set.
 * @param python - The Python chosen in the Python extension, if any.
 * @param isTrusted - Whether the workspace is trusted.
 */
export function serverOptions(configured: string, python: string | undefined, isTrusted: boolean): ServerOptions {
  const interpreter = configured || python;
  if (!isTrusted || interpreter === undefined) return { trusted: isTrusted };
  return { trusted: true, interpreter };
}
