/** What the commands ask of the person and of the server, one after another. Nothing here knows VS Code. */

/** A target that `[tool.jaxresid.targets]` names. */
export interface Target {
  readonly name: string;
  /** The folder of the pyproject.toml that names it. */
  readonly folder: string;
}

/** The server's commands; undefined where none runs or where it refused, which was said. */
export interface Commands {
  execute<T>(command: string, ...args: unknown[]): Promise<T | undefined>;
}

/** How a person is asked and told; undefined where they give no answer. */
export interface Person {
  pick(title: string, items: readonly { label: string; description: string }[]): Promise<number | undefined>;
  write(title: string, prompt: string, example: string): Promise<string | undefined>;
  tell(text: string): void;
}

/** Return the target that the person chooses. */
export async function chosenTarget(server: Commands, person: Person): Promise<Target | undefined> {
  const targets = await server.execute<readonly Target[]>("jaxresid.targets");
  if (targets === undefined) return undefined;
  if (targets.length === 0) {
    person.tell("No targets: name them in [tool.jaxresid.targets] of pyproject.toml.");
    return undefined;
  }
  const items = targets.map(({ name, folder }) => ({ label: name, description: folder }));
  const chosen = await person.pick("Target", items);
  return chosen === undefined ? undefined : targets[chosen];
}

/** Trace the target that the person chooses. */
export async function trace(server: Commands, person: Person): Promise<void> {
  const target = await chosenTarget(server, person);
  if (target !== undefined) await server.execute("jaxresid.trace", target.name, target.folder);
}

/**
 * Plan the target that the person chooses; the server says what the plan is.
 *
 * @param place - The accelerator, as `--on` takes it; empty: that of the target.
 */
export async function plan(server: Commands, person: Person, place: string): Promise<void> {
  const target = await chosenTarget(server, person);
  if (target === undefined) return;
  const budget = await person.write(`Plan to fit: ${target.name}`, "The memory that the peak has to stay within", "12GiB");
  if (!budget) return;
  await server.execute("jaxresid.plan", target.name, budget.trim(), place || null, target.folder);
}

/** Apply the last plan of the target that the person chooses. */
export async function applyPlan(server: Commands, person: Person): Promise<void> {
  const target = await chosenTarget(server, person);
  if (target !== undefined) await server.execute("jaxresid.applyPlan", target.name, target.folder);
}
