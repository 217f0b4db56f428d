#!/usr/bin/env bash
# Packs the npm package pleach-verify, and tries it in an empty folder: every vector in Node.js, and its types. The file
# is left in the folder that is named, if one is. What is missing is said and left out.
set -euo pipefail
cd "$(dirname "$0")"
skipped() { echo "the npm package: SKIPPED, $1" && exit; }
for tool in node npm; do
  command -v "$tool" >/dev/null || skipped "\`$tool\` is not installed here"
done
[[ -e pleach.wasm ]] || ../.ci/targets module
[[ -e pleach.wasm ]] || skipped "the module is not built"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
npm install --silent --prefix "$folder/tools" typescript@5 2>/dev/null || skipped "no package registry can be had"
tsc=$folder/tools/node_modules/.bin/tsc

# Links are not packed.
mkdir "$folder/package"
cp -L package.json pleach.js pleach.wasm LICENSE-* "$folder/package"
cp npm.md "$folder/package/README.md"
"$tsc" --allowJs --declaration --emitDeclarationOnly --target es2022 --module nodenext \
  --outDir "$folder/package" "$folder/package/pleach.js"
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
[[ -z ${1:-} ]] || cp "$folder"/pleach-verify-*.tgz "$OLDPWD/$1"
