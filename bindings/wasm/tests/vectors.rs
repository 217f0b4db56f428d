//! The module's functions, called by pointer and length as a WebAssembly runtime calls them, give what the vectors of
//! `pleach-core` say, and refuse the rest. `.ci/browser` does the same in a browser.
#![expect(unsafe_code, reason = "the functions take pointers and lengths")]

use pleach_core::Hasher;
use pleach_core::hexadecimal::{from_hex, hex};
use pleach_core::proof::{namespace, roots::NamespaceRoots};
use pleach_wasm::exports;
use serde_json::{Value, json};

type Function = unsafe extern "C" fn(u32, *const u8, usize) -> *mut u8;

/// Calls a function as `pleach.js` does: an answer, or the reason of a refusal.
fn ask(function: Function, hasher: u32, parts: &[&[u8]]) -> Result<Vec<u8>, String> {
    let bytes = parts.concat();
    let request = exports::alloc(bytes.len());
    assert!(!request.is_null());
    // SAFETY: so many bytes are there, and nobody else's.
    unsafe { std::slice::from_raw_parts_mut(request, bytes.len()) }.copy_from_slice(&bytes);
    // SAFETY: the request is from `alloc`.
    let reply = unsafe { function(hasher, request, bytes.len()) };
    // SAFETY: a reply begins with four bytes.
    let len = u32::from_le_bytes(*unsafe { reply.cast::<[u8; 4]>().as_ref() }.expect("a reply"));
    let len = usize::try_from(len).expect("a length") + 4;
    // SAFETY: so many bytes are there.
    let whole = unsafe { std::slice::from_raw_parts(reply, len) }.to_vec();
    // SAFETY: the reply has this length, and is freed here alone.
    unsafe { exports::free(reply, len) };
    // SAFETY: the request has this length, and is freed here alone.
    unsafe { exports::free(request, bytes.len()) };
    let body = whole[5..].to_vec();
    match whole[4] {
        1 => Ok(body),
        0 => Err(String::from_utf8(body).expect("a reason is text")),
        other => panic!("{other} is no status"),
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    value.as_str().and_then(from_hex).expect("hexadecimal digits")
}

/// A found hash, from a hash or `null`.
fn found(value: &Value) -> Vec<u8> {
    if value.is_null() { vec![0; 33] } else { [vec![1], bytes(value)].concat() }
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("no list {field}"))
}

fn vectors() -> Value {
    let text = include_str!("../proofs.json");
    serde_json::from_str(text).expect("the vectors")
}

fn number(hasher: &Value) -> u32 {
    let name = hasher.as_str().expect("a name");
    u32::from(Hasher::of_name(name).expect("a hash function").id())
}

/// The kind of a witness, in its header.
const WITNESS: u8 = 3;

/// A function, the parts of a request before the proof, the proof and the right answer.
type Case = (Function, Vec<Vec<u8>>, Vec<u8>, Vec<u8>);

fn cases(state: &Value) -> Vec<Case> {
    let root = bytes(&state["root"]);
    let mut cases: Vec<Case> = Vec::new();
    for case in list(state, "proofs") {
        let proof = bytes(&case["proof"]);
        let ends = || [bytes(&case["first"]), bytes(&case["last"])];
        cases.push(match case["kind"].as_str().expect("a kind") {
            "key" => {
                let claim = &case["claims"][0];
                let parts = vec![root.clone(), bytes(&claim["key"])];
                (exports::verify_key, parts, proof, found(&claim["value"]))
            }
            "keys" => {
                let claims = list(case, "claims");
                let count = u32::try_from(claims.len()).expect("few").to_le_bytes().to_vec();
                let mut parts = vec![root.clone(), count];
                parts.extend(claims.iter().map(|claim| bytes(&claim["key"])));
                let answer = claims.iter().flat_map(|claim| found(&claim["value"])).collect();
                (exports::verify_keys, parts, proof, answer)
            }
            "range" => {
                let parts = [vec![root.clone()], ends().into()].concat();
                let pair = |pair: &Value| [bytes(&pair["key"]), bytes(&pair["value"])].concat();
                let answer = list(case, "pairs").iter().flat_map(pair).collect();
                (exports::verify_range, parts, proof, answer)
            }
            "change" => {
                let parts = [vec![root.clone(), bytes(&case["to_root"])], ends().into()].concat();
                let change = |change: &Value| {
                    [bytes(&change["key"]), found(&change["before"]), found(&change["after"])]
                        .concat()
                };
                let answer = list(case, "changes").iter().flat_map(change).collect();
                (exports::verify_change, parts, proof, answer)
            }
            other => panic!("no kind {other}"),
        });
    }
    let witness = &state["witness"];
    let op = |op: &Value| {
        let access = match op["access"].as_str().expect("an access") {
            "read" => 1,
            "write" => 2,
            _ => 3,
        };
        [bytes(&op["key"]), vec![access], found(&op["before"]), found(&op["after"])].concat()
    };
    let ops = list(witness, "ops").iter().flat_map(op);
    let answer = bytes(&witness["new_root"]).into_iter().chain(ops).collect();
    cases.push((exports::verify_witness, vec![root], bytes(&witness["witness"]), answer));
    cases
}

#[test]
fn every_vector_is_answered_and_refused_with_a_flipped_byte() {
    let mut seen = 0;
    for vectors in list(&vectors(), "vectors") {
        let hasher = number(&vectors["hasher"]);
        for (function, parts, proof, answer) in list(vectors, "states").iter().flat_map(cases) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let with = |proof: &[u8]| ask(function, hasher, &[parts.as_slice(), &[proof]].concat());
            assert_eq!(with(&proof).as_ref(), Ok(&answer));
            for at in 0..proof.len() {
                let mut flipped = proof.clone();
                flipped[at] ^= 1 << (at % 8);
                match with(&flipped) {
                    Err(_) => {}
                    // Which operations a witness is of, and what they write, no root before says: it is one of others.
                    Ok(other) => assert!(proof[5] == WITNESS && other != answer, "byte {at}"),
                }
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 2 * (8 + 9 + 10 + 11 + 11), "vectors");
}

#[test]
fn a_request_that_is_cut_short_is_refused() {
    let functions: [Function; 7] = [
        exports::verify_key,
        exports::verify_keys,
        exports::verify_range,
        exports::verify_change,
        exports::verify_witness,
        exports::open_namespace,
        exports::open_namespace_change,
    ];
    for function in functions {
        for len in 0..160 {
            // As a number of keys, all ones are more than there can be.
            for byte in [0, 0xff] {
                assert!(ask(function, 1, &[&vec![byte; len]]).is_err(), "{len} bytes");
            }
        }
        let unknown = ask(function, 3, &[&[0; 200]]);
        assert_eq!(unknown, Err("unknown hash function".into()));
    }
}

#[test]
fn a_proof_of_another_key_names_the_key_that_it_says_nothing_about() {
    let vectors = vectors();
    let state = &vectors["vectors"][0]["states"][3];
    let (root, case) = (bytes(&state["root"]), &state["proofs"][0]);
    let other = [0xab; 32];
    let answer = ask(exports::verify_key, 1, &[&root, &other, &bytes(&case["proof"])]);
    let reason = format!("the proof says nothing about the key {}", hex(other));
    assert_eq!(answer, Err(reason));
}

#[test]
fn values_are_hashed_by_either_function() {
    for hasher in [Hasher::BLAKE3, Hasher::SHA2_256] {
        for value in [&b""[..], b"90", &[7; 5000]] {
            let hash = ask(exports::hash, hasher.id().into(), &[value]);
            assert_eq!(hash, Ok(hasher.hash(value).to_vec()));
        }
    }
}

/// Proofs through the root over all, for the test in the browser, from the vectors of a state: its namespace is 7, beside
/// an empty one, before and after the state's batch.
fn namespaces(state: &Value) -> Value {
    let hasher = Hasher::BLAKE3;
    let node = |value: &Value| {
        let bytes: [u8; 32] = bytes(value).try_into().expect("a root");
        pleach_core::Node::from(bytes)
    };
    let change = list(state, "proofs").last().expect("proofs");
    let (root, to) = (node(&state["root"]), node(&change["to_root"]));
    let before = NamespaceRoots::from_iter([(2, pleach_core::TERMINATOR), (7, root)]);
    let mut after = before.clone();
    after.set(7, Some(to));
    let over_all = |roots: &NamespaceRoots| hex(roots.over_all(hasher).to_bytes());
    let through =
        |ns, inner: &[u8]| hex(namespace::build(hasher, &before, ns, inner).expect("built"));
    let inner = bytes(&state["proofs"][0]["proof"]);
    let changed = namespace::build_change(hasher, &before, &after, 7, &bytes(&change["proof"]));
    let unchanged = namespace::build_change(hasher, &before, &after, 2, &[]);
    json!({
        "hasher": "blake3", "root": over_all(&before), "to_root": over_all(&after), "namespace": 7,
        "inner_root": state["root"], "inner": hex(&inner), "proof": through(7, &inner),
        "absent": {"namespace": 3, "proof": through(3, &[])},
        "change": {
            "proof": hex(changed.expect("built")), "before": state["root"], "after": change["to_root"],
            "inner": change["proof"],
        },
        "unchanged": {"namespace": 2, "proof": hex(unchanged.expect("built"))},
    })
}

#[test]
fn namespaces_are_opened() {
    let vectors = vectors();
    let all = namespaces(&vectors["vectors"][0]["states"][3]);
    let text = format!("{all:#}\n");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("namespaces.json");
    if std::env::var_os("PLEACH_BLESS").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    assert!(text == std::fs::read_to_string(&path).expect("the vectors"), "they have changed");

    let (root, to_root) = (bytes(&all["root"]), bytes(&all["to_root"]));
    let open = |proof: &Value| ask(exports::open_namespace, 1, &[&root, &bytes(proof)]);
    let right = [vec![7], found(&all["inner_root"]), bytes(&all["inner"])].concat();
    assert_eq!(open(&all["proof"]), Ok(right));
    assert_eq!(open(&all["absent"]["proof"]), Ok([vec![3], vec![0; 33]].concat()));
    assert!(open(&all["inner"]).is_err(), "an inner proof alone");

    let change = |case: &Value| {
        ask(exports::open_namespace_change, 1, &[&root, &to_root, &bytes(&case["proof"])])
    };
    let case = &all["change"];
    let roots = [found(&case["before"]), found(&case["after"])].concat();
    assert_eq!(change(case), Ok([vec![7, 1], roots, bytes(&case["inner"])].concat()));
    assert_eq!(change(&all["unchanged"]), Ok([vec![2, 0], vec![0; 66]].concat()));
}
