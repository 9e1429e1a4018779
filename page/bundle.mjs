// Bundle the page's script and style, with the licences of what is in them:
// npm ci && npm run bundle

import { build } from "esbuild";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const target = new URL(process.argv[2] ? `file://${process.argv[2]}/` : "../jaxresid/render/page/bundle/", import.meta.url);
const common = { bundle: true, minify: true, legalComments: "none", charset: "utf8", write: false, target: "es2022", logLevel: "warning" };
const script = await build({ ...common, entryPoints: ["src/main.js"], format: "iife", metafile: true });
const style = await build({ ...common, entryPoints: ["src/page.css"] });
writeFileSync(new URL("page.js", target), script.outputFiles[0].text);
writeFileSync(new URL("page.css", target), style.outputFiles[0].text);

const packages = new Set();
for (const input of Object.keys(script.metafile.inputs)) {
  const found = /^node_modules\/([^/]+)\//.exec(input);
  if (found) packages.add(found[1]);
}
const licences = [...packages].sort().map((name) => {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`));
  const file = readdirSync(`node_modules/${name}`).find((each) => /^licen[cs]e/i.test(each));
  return `${name} ${version}\n\n${readFileSync(`node_modules/${name}/${file}`, "utf8").trim()}\n`;
});
writeFileSync(new URL("LICENSES.txt", target), licences.join(`\n${"-".repeat(72)}\n\n`));
