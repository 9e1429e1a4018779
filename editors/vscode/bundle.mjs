// Bundle the extension into dist/extension.js, with the licences of what is in it; with --tests, the
// tests into dist/test/.

import { build } from "esbuild";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";

const common = { bundle: true, platform: "node", target: "node20", format: "cjs", logLevel: "warning" };
// What stands for VS Code in the tests.
const alias = { vscode: "./test/fakes/vscode.ts", "vscode-languageclient/node": "./test/fakes/languageclient.ts" };

if (process.argv.includes("--tests")) {
  const tests = readdirSync("test").filter((name) => name.endsWith(".test.ts"));
  rmSync("dist/test", { recursive: true, force: true });
  await build({ ...common, entryPoints: tests.map((name) => `test/${name}`), outdir: "dist/test", sourcemap: "inline", alias });
} else {
  const { metafile } = await build({ ...common, entryPoints: ["src/extension.ts"], outfile: "dist/extension.js", external: ["vscode"], minify: true, metafile: true });
  const packages = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) packages.add(found[1]);
  }
  const licences = [...packages].sort().map((name) => {
    const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
    const file = readdirSync(`node_modules/${name}`).find((each) => /^licen[cs]e/i.test(each));
    return `${name} ${version}\n\n${readFileSync(`node_modules/${name}/${file}`, "utf8").trim()}\n`;
  });
  mkdirSync("dist", { recursive: true });
  writeFileSync("dist/LICENSES.txt", licences.join(`\n${"-".repeat(72)}\n\n`));
}
