/**
 * Verifies proofs and witnesses of Pleach, by the WebAssembly module `pleach.wasm`.
 *
 *     const pleach = await load();
 *     const valueHash = pleach.verifyKey({ root, key, proof }); // null: the key has no value
 *
 * A function returns only what follows from the root. It throws `Refused` where a proof does not hold or does not answer,
 * and `TypeError` where an argument is no such thing.
 *
 * @module pleach
 * @typedef {Uint8Array | string} Bytes Bytes, or their hexadecimal digits, with or without `0x`.
 * @typedef {"blake3" | "sha2-256"} HashFunction That of the database. "blake3" where none is given.
 * @typedef {"key" | "keys" | "witness" | "range" | "change" | "namespace" | "namespaceChange" | "block"} Kind
 */

/** A proof does not hold, or does not answer; the message says why. */
export class Refused extends Error {
  name = "Refused";
}

const HASH_FUNCTIONS = { blake3: 1, "sha2-256": 2 };
const KINDS = ["key", "keys", "witness", "range", "change", "namespace", "namespaceChange", "block"];
const ACCESSES = ["read", "write", "read and write"];
const FIRST = new Uint8Array(32);
const LAST = new Uint8Array(32).fill(0xff);

/**
 * @param {Bytes} value
 * @param {string} name For the message of the error.
 * @param {number} [length] The only length that is right.
 * @returns {Uint8Array}
 */
export function toBytes(value, name, length) {
  let bytes = value;
  if (typeof value === "string") {
    const digits = value.trim().replace(/^0x/i, "");
    if (!/^([0-9a-f]{2})*$/i.test(digits)) throw new TypeError(`${name}: not an even number of hexadecimal digits`);
    bytes = Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  }
  if (!(bytes instanceof Uint8Array)) throw new TypeError(`${name}: neither bytes nor hexadecimal digits`);
  if (length !== undefined && bytes.length !== length) {
    throw new TypeError(`${name}: ${bytes.length} bytes instead of ${length}`);
  }
  return bytes;
}

/** @param {Uint8Array} bytes */
export const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/**
 * What a proof says it is, not verified; `null`: it is no proof.
 * @param {Bytes} proof
 * @returns {Kind | null}
 */
export function kindOf(proof) {
  const bytes = toBytes(proof, "proof");
  const magic = String.fromCharCode(...bytes.subarray(0, 4));
  return magic === "PLPF" ? KINDS[bytes[5] - 1] ?? null : null;
}

/** An answer, read from its start. */
class Reader {
  #rest;
  constructor(bytes) {
    this.#rest = bytes;
  }
  get more() {
    return this.#rest.length > 0;
  }
  take(count) {
    const taken = this.#rest.slice(0, count);
    this.#rest = this.#rest.subarray(count);
    return taken;
  }
  byte() {
    return this.take(1)[0];
  }
  hash() {
    return this.take(32);
  }
  /** A hash, or `null`. */
  found() {
    const [is, hash] = [this.byte(), this.hash()];
    return is ? hash : null;
  }
  rest() {
    return this.take(this.#rest.length);
  }
  /** One record after the other, to the end. */
  all(read) {
    const records = [];
    while (this.more) records.push(read());
    return records;
  }
}

export class Pleach {
  #wasm;
  constructor(wasm) {
    this.#wasm = wasm;
  }

  /** Calls a function of the module with these parts of a request. */
  #ask(name, hasher, parts) {
    const id = Object.hasOwn(HASH_FUNCTIONS, hasher) ? HASH_FUNCTIONS[hasher] : undefined;
    if (!id) throw new TypeError(`hasher: neither ${Object.keys(HASH_FUNCTIONS).join(" nor ")}`);
    if (!this.#wasm) throw new Error("the module has failed before and is to be loaded again");
    const { memory, alloc, free, [name]: call } = this.#wasm;
    const length = parts.reduce((sum, part) => sum + part.length, 0);
    try {
      const request = alloc(length) >>> 0;
      if (!request) throw new RangeError(`no memory for ${length} bytes`);
      let at = request;
      for (const part of parts) {
        new Uint8Array(memory.buffer, at, part.length).set(part);
        at += part.length;
      }
      const reply = call(id, request, length) >>> 0;
      // The memory may have grown, and its buffer is another one then.
      const size = new DataView(memory.buffer).getUint32(reply, true);
      const answer = new Reader(new Uint8Array(memory.buffer.slice(reply + 4, reply + 4 + size)));
      free(reply, size + 4);
      free(request, length);
      if (answer.byte() === 0) throw new Refused(new TextDecoder().decode(answer.rest()));
      return answer;
    } catch (error) {
      // A trap leaves the memory as it was in the middle of a call.
      if (error instanceof WebAssembly.RuntimeError) this.#wasm = null;
      throw error;
    }
  }

  /**
   * What the state with this root says of a key.
   * @param {{ root: Bytes, key: Bytes, proof: Bytes, hasher?: HashFunction }} _
   * @returns {Uint8Array | null} The hash of the key's value; `null`: the key has none.
   */
  verifyKey({ root, key, proof, hasher = "blake3" }) {
    const parts = [toBytes(root, "root", 32), toBytes(key, "key", 32), toBytes(proof, "proof")];
    return this.#ask("verify_key", hasher, parts).found();
  }

  /**
   * What the state with this root says of several keys.
   * @param {{ root: Bytes, keys: Bytes[], proof: Bytes, hasher?: HashFunction }} _
   * @returns {(Uint8Array | null)[]} For each key as `verifyKey`.
   */
  verifyKeys({ root, keys, proof, hasher = "blake3" }) {
    const count = new Uint8Array(new Uint32Array([keys.length]).buffer);
    const all = keys.map((key, at) => toBytes(key, `key ${at + 1}`, 32));
    const answer = this.#ask("verify_keys", hasher, [toBytes(root, "root", 32), count, ...all, toBytes(proof, "proof")]);
    return answer.all(() => answer.found());
  }

  /**
   * All pairs that the state with this root has from `first` to `last`, both included.
   * @param {{ root: Bytes, proof: Bytes, first?: Bytes, last?: Bytes, hasher?: HashFunction }} _
   * @returns {{ key: Uint8Array, valueHash: Uint8Array }[]}
   */
  verifyRange({ root, proof, first = FIRST, last = LAST, hasher = "blake3" }) {
    const ends = [toBytes(first, "first", 32), toBytes(last, "last", 32)];
    const answer = this.#ask("verify_range", hasher, [toBytes(root, "root", 32), ...ends, toBytes(proof, "proof")]);
    return answer.all(() => ({ key: answer.hash(), valueHash: answer.hash() }));
  }

  /**
   * All keys from `first` to `last` whose value differs between the states with the roots `from` and `to`.
   * @param {{ from: Bytes, to: Bytes, proof: Bytes, first?: Bytes, last?: Bytes, hasher?: HashFunction }} _
   * @returns {{ key: Uint8Array, before: Uint8Array | null, after: Uint8Array | null }[]} Hashes of values.
   */
  verifyChange({ from, to, proof, first = FIRST, last = LAST, hasher = "blake3" }) {
    const roots = [toBytes(from, "from", 32), toBytes(to, "to", 32)];
    const ends = [toBytes(first, "first", 32), toBytes(last, "last", 32)];
    const answer = this.#ask("verify_change", hasher, [...roots, ...ends, toBytes(proof, "proof")]);
    return answer.all(() => ({ key: answer.hash(), before: answer.found(), after: answer.found() }));
  }

  /**
   * Where a block leads from the state with this root, and what it read and wrote.
   * @param {{ root: Bytes, witness: Bytes, hasher?: HashFunction }} _
   * @returns {{ newRoot: Uint8Array, ops: { key: Uint8Array, access: string, before: Uint8Array | null, after: Uint8Array | null }[] }}
   *   `access` is "read", "write" or "read and write"; `after` is what was written, `null` for a deletion.
   */
  verifyWitness({ root, witness, hasher = "blake3" }) {
    const answer = this.#ask("verify_witness", hasher, [toBytes(root, "root", 32), toBytes(witness, "witness")]);
    const newRoot = answer.hash();
    const op = () => ({ key: answer.hash(), access: ACCESSES[answer.byte() - 1], before: answer.found(), after: answer.found() });
    return { newRoot, ops: answer.all(op) };
  }

  /**
   * The root of a namespace, from the root over all. `inner` is **not verified**: give it to the function of its kind with
   * the namespace's root.
   * @param {{ root: Bytes, proof: Bytes, hasher?: HashFunction }} _
   * @returns {{ namespace: number, root: Uint8Array | null, inner: Uint8Array }} `root` is `null` where it does not exist.
   */
  openNamespace({ root, proof, hasher = "blake3" }) {
    const answer = this.#ask("open_namespace", hasher, [toBytes(root, "root", 32), toBytes(proof, "proof")]);
    return { namespace: answer.byte(), root: answer.found(), inner: answer.rest() };
  }

  /**
   * What became of a namespace's root between two roots over all. `inner` is **not verified**: give it to `verifyChange`
   * between the two roots, 32 zero bytes for `null`; it is empty where no key changed.
   * @param {{ from: Bytes, to: Bytes, proof: Bytes, hasher?: HashFunction }} _
   * @returns {{ namespace: number, changed: boolean, before: Uint8Array | null, after: Uint8Array | null, inner: Uint8Array }}
   *   The roots are `null` where the namespace does not exist, or where it is unchanged.
   */
  openNamespaceChange({ from, to, proof, hasher = "blake3" }) {
    const parts = [toBytes(from, "from", 32), toBytes(to, "to", 32), toBytes(proof, "proof")];
    const answer = this.#ask("open_namespace_change", hasher, parts);
    const [namespace, changed] = [answer.byte(), answer.byte() === 1];
    return { namespace, changed, before: answer.found(), after: answer.found(), inner: answer.rest() };
  }

  /**
   * The hash of a value, for a comparison with a `valueHash`.
   * @param {Bytes} data
   * @param {HashFunction} [hasher]
   * @returns {Uint8Array}
   */
  hash(data, hasher = "blake3") {
    return this.#ask("hash", hasher, [toBytes(data, "data")]).hash();
  }
}

/**
 * @param {BufferSource} [bytes] The contents of `pleach.wasm`; of the package's own where none are given.
 * @returns {Promise<Pleach>}
 */
export async function load(bytes) {
  bytes ??= await (await import("./module.js")).ownModule();
  const { instance } = await WebAssembly.instantiate(bytes);
  if (!instance.exports.verify_key) throw new Error("this module is not pleach.wasm");
  return new Pleach(instance.exports);
}
