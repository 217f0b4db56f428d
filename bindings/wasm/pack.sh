#!/usr/bin/env bash
# Packs the npm package pleach-verify, and tries it in an empty folder: every vector in Node.js, its types, and in programs
# that bundlers make. `pack.sh FOLDER` leaves the package there. What is missing is said and left out.
set -euo pipefail
out=${1:+$(mkdir -p "$1" && realpath "$1")}
cd "$(dirname "$0")"
skipped() { echo "the npm package: SKIPPED, $1" && exit; }
for tool in node npm; do
  command -v "$tool" >/dev/null || skipped "\`$tool\` is not installed here"
done
[[ -e pleach.wasm ]] || ../../.ci/targets module
[[ -e pleach.wasm ]] || skipped "the module is not built"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
npm install --silent --prefix "$folder/tools" typescript@5 2>/dev/null || skipped "no package registry can be had"
tsc=$folder/tools/node_modules/.bin/tsc

# Links are not packed.
mkdir "$folder/package"
cp -L package.json pleach.js module.js pleach.wasm LICENSE-* "$folder/package"
cp npm.md "$folder/package/README.md"
"$tsc" --allowJs --declaration --emitDeclarationOnly --target es2022 --module nodenext \
  --outDir "$folder/package" "$folder/package/pleach.js"
# No bundler has to find a file, which each does in its own way or not at all.
cat >"$folder/package/module.js" <<END
const text = "$(base64 -w 0 pleach.wasm)";
/** The contents of \`pleach.wasm\`. */
export const ownModule = () => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
END
(cd "$folder/package" && npm pack --silent --pack-destination "$folder" >/dev/null)

mkdir "$folder/stranger"
cp proofs.json "$folder/stranger"
cd "$folder/stranger"
npm init -y >/dev/null
npm install --silent "$folder"/pleach-verify-*.tgz
cat >vectors.mjs <<'END'
import { readFileSync } from "node:fs";
import { Refused, load, toHex } from "pleach-verify";

const pleach = await load();
let verified = 0;
for (const { hasher, states } of JSON.parse(readFileSync("proofs.json", "utf8")).vectors) {
  for (const { root, proofs } of states) {
    for (const { kind, claims, proof } of proofs.filter(({ kind }) => kind === "keys")) {
      const keys = claims.map(({ key }) => key);
      const found = pleach.verifyKeys({ root, keys, proof, hasher });
      const same = claims.every(({ value }, at) => (found[at] && toHex(found[at])) === value);
      if (!same) throw new Error(`${kind} of ${root}`);
      try {
        pleach.verifyKeys({ root: "11".repeat(32), keys, proof, hasher });
        throw new Error("believed against another root");
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
      }
      verified += 1;
    }
  }
}
const empty = Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0);
const said = await load(empty).then(() => "loaded", (error) => error.message);
if (said !== "this module is not pleach.wasm") throw new Error(`another module: ${said}`);
if (verified < 10) throw new Error(`only ${verified} vectors`);
console.log(`pleach-verify in Node.js ${process.version}: ${verified} vectors`);
END
node vectors.mjs
cat >types.mts <<'END'
import { type Bytes, load, Refused } from "pleach-verify";

export async function balance(root: Bytes, key: Bytes, proof: Bytes): Promise<Uint8Array | null> {
  try {
    return (await load()).verifyKey({ root, key, proof });
  } catch (error) {
    if (error instanceof Refused) return null;
    throw error;
  }
}
END
"$tsc" --strict --noEmit --target es2022 --module nodenext types.mts
if sed 's/key, proof });/kee: key, proof });/' types.mts >wrong.mts && "$tsc" --strict --noEmit --target es2022 --module nodenext wrong.mts >/dev/null; then
  echo "the types let a wrong name pass" >&2
  exit 1
fi

if [[ -n $out ]]; then cp "$folder"/pleach-verify-*.tgz "$out"; fi

npm install --silent esbuild@0.28 vite@7 webpack@5 webpack-cli@7
echo 'import { load } from "pleach-verify"; load().then((pleach) => console.log(pleach.hash("").length));' >main.mjs
echo '<!doctype html><script type="module" src="/main.mjs"></script>' >index.html
# Browsers load parts of a program by their page, which Node.js has not.
echo 'export default { build: { modulePreload: false } };' >vite.config.mjs
# Runs file $3 of what the bundler $1 has put into the folder $2, where nothing else is.
made() {
  mv "$2" "$folder/alone"
  [[ $(cd "$folder/alone" && node "$(compgen -G "$3")") == 32 ]] || { echo "the package does not work in $1" >&2 && exit 1; }
  rm -rf "$folder/alone"
  echo "pleach-verify in $1: loaded"
}
esbuild=(npx esbuild main.mjs --bundle --log-level=error --outdir=out)
"${esbuild[@]}" --format=esm --out-extension:.js=.mjs
made "esbuild, for browsers" out main.mjs
"${esbuild[@]}" --format=esm --out-extension:.js=.mjs --platform=node
made "esbuild, for Node.js" out main.mjs
"${esbuild[@]}" --format=cjs --out-extension:.js=.cjs --platform=node
made "esbuild, for Node.js, CommonJS" out main.cjs
for target in web node; do
  npx webpack ./main.mjs --mode production --target "$target" --no-output-async-chunks -o out >/dev/null
  made "webpack, for $target" out main.js
done
npx vite build --logLevel error --outDir out
made "vite, built" out 'assets/index-*.js'
# What it gives to a page while that is developed.
npx vite optimize --logLevel error
sed 's|"pleach-verify"|"./pleach-verify.js"|' main.mjs >node_modules/.vite/deps/main.mjs
made "vite, development" node_modules/.vite/deps main.mjs
