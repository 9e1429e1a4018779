/** A client of a server that answers as told, for tests of how the extension is wired. */

export const State = { Stopped: 1, Running: 2 };
export const started: LanguageClient[] = [];
export const answers: Record<string, unknown> = {};
export const control = { fails: false };

export class LanguageClient {
  state = State.Stopped;
  readonly asked: { command: string; arguments: unknown[] }[] = [];

  constructor(
    _: string,
    __: string,
    readonly server: { command: string; args: string[] },
    readonly options: { initializationOptions: unknown },
  ) {}

  async start(): Promise<void> {
    if (control.fails) throw new Error("spawn jaxresid ENOENT");
    this.state = State.Running;
    started.push(this);
  }

  async dispose(): Promise<void> {
    this.state = State.Stopped;
  }

  async sendRequest(_: string, params: { command: string; arguments: unknown[] }): Promise<unknown> {
    this.asked.push(params);
    const answer = answers[params.command];
    if (answer instanceof Error) throw answer;
    return answer;
  }
}
