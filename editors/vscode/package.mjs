// Package the extension as dist/jaxresid.vsix, with the version of jaxresid itself.

import { createVSIX } from "@vscode/vsce";
import { copyFileSync, readFileSync } from "node:fs";

const [, version] = /__version__ = "(\d+\.\d+\.\d+)/.exec(readFileSync("../../jaxresid/_version.py", "utf8"));
copyFileSync("../../LICENSE", "LICENSE");
await createVSIX({ version, updatePackageJson: false, dependencies: false, allowMissingRepository: true, packagePath: "dist/jaxresid.vsix" });
