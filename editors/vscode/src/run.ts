/** Run a command, and end it with all that it started when nobody waits for it any more. */

import { spawn } from "node:child_process";

/** What became of a command that was run. */
export interface Ended {
  /** Its exit code; null where it was cancelled or did not start. */
  readonly code: number | null;
  /** The last line of what it wrote to standard error, or why it did not start. */
  readonly said: string;
}

/** Something that may be cancelled, such as VS Code's CancellationToken. */
export interface Cancelling {
  onCancellationRequested(call: () => void): { dispose(): void };
}

/**
 * Run a command and return how it ended.
 *
 * @param command - The program and its arguments; no shell reads them.
 * @param folder - The folder that it runs in.
 * @param cancelling - What ends it before its time.
 * @param log - Is given what it writes to standard error.
 */
export function run(command: readonly string[], folder: string, cancelling: Cancelling, log: (text: string) => void): Promise<Ended> {
  const [program = "", ...args] = command;
  // A group of its own, so that what it starts ends with it.
  const detached = process.platform !== "win32";
  return new Promise((resolve) => {
    const child = spawn(program, args, { cwd: folder, stdio: ["ignore", "ignore", "pipe"], detached });
    let text = "";
    let isCancelled = false;
    child.stderr.setEncoding("utf8").on("data", (more: string) => {
      text += more;
      log(more);
    });
    const watch = cancelling.onCancellationRequested(() => {
      isCancelled = true;
      if (detached && child.pid !== undefined) process.kill(-child.pid, "SIGTERM");
      else child.kill();
    });
    const end = (code: number | null, said: string): void => {
      watch.dispose();
      resolve({ code: isCancelled ? null : code, said });
    };
    child.on("error", (error) => end(null, error.message));
    child.on("close", (code) => end(code, text.trim().split("\n").at(-1) ?? ""));
  });
}
