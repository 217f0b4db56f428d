# What a day of work needs, for those who have `just`. CONTRIBUTING.md has the same as plain commands.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Lists the recipes.
default:
    @just --list --unsorted

# Before each commit: format, lints and unit tests of one package.
check package="pleach":
    cargo fmt --all --check
    cargo clippy -p {{package}} --all-targets -- -D warnings
    cargo test -p {{package}} --lib

# All tests of the workspace.
test *args:
    cargo test --workspace {{args}}

# One test, by its name or a part of it, with what it prints.
one name package="pleach":
    cargo test -p {{package}} -- {{name}} --nocapture

# One seed of the crash tests: all crash points that the test draws from it, or the one at a boundary.
crash seed="0" boundary="" test="a_power_failure":
    PLEACH_SEED={{seed}} PLEACH_BOUNDARY={{boundary}} PLEACH_CASES=1 cargo test -p pleach --test plans_follow_their_models -- {{test}} --nocapture

# The ordering rules as a model, with the size of each counter-example; a larger depth goes deeper.
model depth="":
    {{ if depth == "" { "" } else { "PLEACH_MODEL_DEPTH=" + depth + " " } }}cargo test -p pleach --test protocol_model -- --nocapture

# One fuzz target for some seconds (needs cargo-fuzz). Without a target: lists them.
fuzz target="" seconds="60":
    {{ if target == "" { "ls fuzz/fuzz_targets" } else { ".ci/fuzz " + seconds + " " + target } }}

# One micro-benchmark: fold, hashing, pages or verifying.
bench name="fold":
    cargo bench -p pleach-core --features naive --bench {{name}}

# The transfer workload of this tree beside that of a revision, in turns: just beside HEAD~1 transfer --log2 22
beside revision="HEAD" *workload:
    .ci/beside "{{revision}}" {{workload}}

# The documentation of all crates, and the links and file names in docs/.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps
    .ci/links

# The pages of docs/ as a book, in target/book (needs mdbook).
book:
    mdbook build docs

# What continuous integration runs, half an hour to an hour from nothing; `just long` has more cases.
ci:
    .ci/run

# The longer forms of the tests, with this many cases each.
long cases="2000":
    .ci/long {{cases}}

# Puts all packages together as they would be published, compiles them, and uploads nothing.
package:
    cargo publish --workspace --dry-run
