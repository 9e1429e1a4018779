import assert from "node:assert/strict";
import { test } from "node:test";

import { applyPlan, chosenTarget, plan, trace, type Commands, type Person } from "../src/flows";

const gpt = { name: "gpt", folder: "/projects/model" };
const step = { name: "step", folder: "/projects/other" };

/** A server that answers as told, and what it was asked. */
class Told implements Commands {
  readonly asked: unknown[][] = [];
  constructor(private readonly answers: Record<string, unknown>) {}

  async execute<T>(command: string, ...args: unknown[]): Promise<T | undefined> {
    this.asked.push([command, ...args]);
    return this.answers[command] as T | undefined;
  }
}

/** A person who chooses the last item, if any, and writes as told. */
class Answering implements Person {
  readonly told: string[] = [];
  constructor(private readonly budget?: string, private readonly chooses = true) {}

  async pick(_: string, items: readonly unknown[]): Promise<number | undefined> {
    return this.chooses ? items.length - 1 : undefined;
  }

  async write(): Promise<string | undefined> {
    return this.budget;
  }

  tell(text: string): void {
    this.told.push(text);
  }
}

test("the chosen target is traced, in its own folder", async () => {
  const server = new Told({ "jaxresid.targets": [gpt, step] });
  await trace(server, new Answering());
  assert.deepEqual(server.asked, [["jaxresid.targets"], ["jaxresid.trace", "step", "/projects/other"]]);
});

test("where no target has a name, it is said where to give one", async () => {
  const person = new Answering();
  assert.equal(await chosenTarget(new Told({ "jaxresid.targets": [] }), person), undefined);
  assert.match(person.told[0] ?? "", /\[tool\.jaxresid\.targets\]/);
});

test("without a server, a choice or a budget nothing is asked", async () => {
  const none = new Told({});
  await plan(none, new Answering("1GiB"), "");
  assert.deepEqual(none.asked, [["jaxresid.targets"]]);
  for (const person of [new Answering("1GiB", false), new Answering()]) {
    const server = new Told({ "jaxresid.targets": [gpt] });
    await plan(server, person, "");
    assert.deepEqual(server.asked, [["jaxresid.targets"]]);
  }
});

test("a plan is for the budget that is written, on the place of the settings or the target's own", async () => {
  const server = new Told({ "jaxresid.targets": [gpt] });
  await plan(server, new Answering(" 3GiB "), "tpu:v5e");
  assert.deepEqual(server.asked.at(-1), ["jaxresid.plan", "gpt", "3GiB", "tpu:v5e", "/projects/model"]);
  await plan(server, new Answering("3GiB"), "");
  assert.deepEqual(server.asked.at(-1), ["jaxresid.plan", "gpt", "3GiB", null, "/projects/model"]);
});

test("the plan of the chosen target is applied", async () => {
  const server = new Told({ "jaxresid.targets": [gpt, step] });
  await applyPlan(server, new Answering());
  assert.deepEqual(server.asked.at(-1), ["jaxresid.applyPlan", "step", "/projects/other"]);
});
