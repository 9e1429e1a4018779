import assert from "node:assert/strict";
import { test } from "node:test";

import { chosenTarget, plan, trace, type Commands, type Person } from "../src/flows";

const gpt = { name: "gpt", folder: "/work/model" };
const step = { name: "step", folder: "/work/other" };

/** A server that answers as told, and what it was asked. */
class Told implements Commands {
  readonly asked: unknown[][] = [];
  constructor(private readonly answers: Record<string, unknown>) {}

  async execute<T>(command: string, ...args: unknown[]): Promise<T | undefined> {
    this.asked.push([command, ...args]);
    return this.answers[command] as T | undefined;
  }
}

/** A person who chooses the last item, and who writes and answers as told. */
class Answering implements Person {
  readonly told: string[][] = [];
  constructor(private readonly budget?: string, private readonly answer?: string, private readonly chooses = true) {}

  async pick(_: string, items: readonly unknown[]): Promise<number | undefined> {
    return this.chooses ? items.length - 1 : undefined;
  }

  async write(): Promise<string | undefined> {
    return this.budget;
  }

  async tell(text: string, ...offered: string[]): Promise<string | undefined> {
    this.told.push([text, ...offered]);
    return this.answer;
  }
}

test("the chosen target is traced, in its own folder", async () => {
  const server = new Told({ "jaxresid.targets": [gpt, step] });
  await trace(server, new Answering());
  assert.deepEqual(server.asked, [["jaxresid.targets"], ["jaxresid.trace", "step", "/work/other"]]);
});

test("where no target has a name, it is said where to give one", async () => {
  const person = new Answering();
  assert.equal(await chosenTarget(new Told({ "jaxresid.targets": [] }), person), undefined);
  assert.match(person.told[0]?.[0] ?? "", /\[tool\.jaxresid\.targets\]/);
});

test("without a server, a choice or a budget nothing is asked", async () => {
  const none = new Told({});
  await plan(none, new Answering("1GiB"), "");
  assert.deepEqual(none.asked, [["jaxresid.targets"]]);
  for (const person of [new Answering("1GiB", undefined, false), new Answering()]) {
    const server = new Told({ "jaxresid.targets": [gpt] });
    await plan(server, person, "");
    assert.deepEqual(server.asked, [["jaxresid.targets"]]);
  }
});

const planned = { text: "peak 2.9 GiB, fits, for 4.9% more FLOPs", can_apply: true };

test("a plan is applied if the person says so", async () => {
  const server = new Told({ "jaxresid.targets": [gpt], "jaxresid.plan": planned });
  const person = new Answering(" 3GiB ", "Apply plan");
  await plan(server, person, "tpu:v5e");
  assert.deepEqual(person.told, [[planned.text, "Apply plan"]]);
  assert.deepEqual(server.asked.slice(1), [
    ["jaxresid.plan", "gpt", "3GiB", "tpu:v5e", "/work/model"],
    ["jaxresid.applyPlan", "gpt", "/work/model"],
  ]);
});

test("and not if they say nothing, or there is nothing to apply", async () => {
  const silent = new Told({ "jaxresid.targets": [gpt], "jaxresid.plan": planned });
  await plan(silent, new Answering("3GiB"), "");
  assert.deepEqual(silent.asked.at(-1), ["jaxresid.plan", "gpt", "3GiB", null, "/work/model"]);
  const nothing = new Told({ "jaxresid.targets": [gpt], "jaxresid.plan": { ...planned, can_apply: false } });
  const person = new Answering("3GiB", undefined);
  await plan(nothing, person, "");
  assert.deepEqual(person.told, [[planned.text]]);
});
