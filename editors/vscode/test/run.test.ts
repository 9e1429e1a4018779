import assert from "node:assert/strict";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as wait } from "node:timers/promises";

import { run, type Cancelling } from "../src/run";

const never: Cancelling = { onCancellationRequested: () => ({ dispose: () => undefined }) };
const folder = mkdtempSync(join(tmpdir(), "jaxresid-run-"));

test("the exit code and the last line that is said", async () => {
  const logged: string[] = [];
  const ended = await run(["sh", "-c", "echo one >&2; echo two >&2; exit 2"], folder, never, (text) => logged.push(text));
  assert.deepEqual(ended, { code: 2, said: "two" });
  assert.equal(logged.join(""), "one\ntwo\n");
});

test("a program that is not there", async () => {
  const ended = await run(["no-such-program"], folder, never, () => undefined);
  assert.equal(ended.code, null);
  assert.match(ended.said, /no-such-program/);
});

test("what is cancelled ends with all that it started", async () => {
  let cancel = (): void => assert.fail("nobody waits for it");
  const cancelling: Cancelling = {
    onCancellationRequested(call) {
      cancel = call;
      return { dispose: () => undefined };
    },
  };
  const ending = run(["sh", "-c", "sleep 600 & echo $! > child; wait"], folder, cancelling, () => undefined);
  const child = await started();
  cancel();
  assert.equal((await ending).code, null);
  for (let i = 0; i < 100 && isAlive(child); i++) await wait(20);
  assert.ok(!isAlive(child));
});

async function started(): Promise<number> {
  for (;;) {
    try {
      const pid = Number(readFileSync(join(folder, "child"), "utf8"));
      if (pid) return pid;
    } catch {
      // not yet
    }
    await wait(10);
  }
}

/** Return whether a process runs; one that ended and that nobody waited for does not. */
function isAlive(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}
