//! The test itself, on small crates whose arrows are known.

use std::collections::BTreeMap;

use crate::arrows::Arrows;
use crate::modules::Crate;
use crate::report::circles_of;
use crate::state::open_fields;

fn small(files: &[(&str, &str)]) -> (Crate, Arrows) {
    let sources: BTreeMap<String, String> =
        files.iter().map(|(path, code)| ((*path).to_owned(), (*code).to_owned())).collect();
    let krate = Crate::parse("small", &sources);
    let arrows = Arrows::of(&krate);
    (krate, arrows)
}

/// `a.rs -> b.rs`, for a crate in which every name leads somewhere.
fn arrows(files: &[(&str, &str)]) -> Vec<String> {
    let (krate, arrows) = small(files);
    assert_eq!((&arrows.unresolved, &krate.strays), (&Vec::new(), &Vec::new()));
    let path = |file: &usize| krate.files[*file].path.as_str();
    arrows.all.keys().map(|(from, to)| format!("{} -> {}", path(from), path(to))).collect()
}

const LIB: (&str, &str) = ("lib.rs", "mod a; mod b;");

/// Arrows of two modules with these codes.
fn between(a: &str, b: &str) -> Vec<String> {
    arrows(&[LIB, ("a.rs", a), ("b.rs", b)])
}

#[test]
fn a_use_and_any_other_path_is_an_arrow() {
    let b = "pub struct B; pub fn f() {} pub trait T {} pub const C: u8 = 0; pub mod inner { pub struct I; }";
    for a in [
        "use crate::b::B;",
        "use crate::b::{B, f};",
        "use crate::b::B as Other;",
        "use crate::b::T as _;",
        "use super::b::B;",
        "use crate::b; fn g() { b::f(); }",
        "use crate::b::{self, inner}; fn g(b: b::B) {}",
        "use crate::b::inner; type X = inner::I;",
        "use super::*; fn g() { b::f(); }",
        "use crate::b::*; fn g() { f(); }",
        "fn g() { super::b::f(); }",
        "fn g() { use crate::b as x; x::f(); }",
        "mod deep { fn g() { super::super::b::f(); } }",
        "mod deep { use super::super::b; mod deeper { fn g() { super::b::f(); } } }",
        "struct S { b: Vec<Option<crate::b::B>> }",
        "fn g(b: &dyn crate::b::T) {}",
        "impl crate::b::T for u8 {}",
        "fn g<X>() where X: crate::b::T {}",
        "fn g(x: u8) { match x { crate::b::C => {} _ => {} } }",
        "const X: [u8; crate::b::C as usize] = [];",
    ] {
        assert_eq!(between(a, b), ["a.rs -> b.rs"], "{a}");
    }
}

#[test]
fn a_module_alone_is_a_name() {
    for a in
        ["use crate::b;", "use crate::b::{self};", "pub(in crate::a) struct A;", "use super::*;"]
    {
        assert_eq!(between(a, "pub struct B;"), [""; 0], "{a}");
    }
}

#[test]
fn names_of_other_crates_point_nowhere() {
    for a in [
        "use std::fmt; fn g(f: fmt::Error) { std::mem::drop(f); }",
        "use b::B; use ::b::C;",
        "use tempfile::tempfile; fn g() { tempfile(); tempfile::other(); }",
        "use rayon::prelude::*; fn g<T: ParallelIterator>() { T::new(); Self::x(); join(); }",
        "pub use blake3::Hash; fn g(h: crate::a::Hash, i: self::Hash) {}",
        "pub use rayon::prelude::*; fn g<T: crate::a::ParallelIterator>() {}",
    ] {
        assert_eq!(between(a, ""), [""; 0], "{a}");
    }
}

#[test]
fn a_name_leads_through_facades_to_its_file() {
    let lib = "mod a; mod b; pub use a::Renamed; pub(crate) use crate::a::deep;";
    let facade = "mod x; pub mod deep; pub use x::{X, X as Renamed}; pub(crate) use deep::*;";
    let files = |b: &'static str| {
        arrows(&[
            ("lib.rs", lib),
            ("a/mod.rs", facade),
            ("a/x.rs", "pub struct X; pub enum E { One, Two(u8) } impl X { pub const C: u8 = 0; }"),
            ("a/deep.rs", "pub fn dig() {}"),
            ("b.rs", b),
        ])
    };
    for b in ["use crate::a::X;", "use crate::Renamed;", "use crate::a::*; fn g(x: X) {}"] {
        assert_eq!(files(b), ["b.rs -> a/x.rs"], "{b}");
    }
    for b in ["use crate::a::dig;", "use crate::deep::dig;", "fn g() { crate::a::deep::dig(); }"] {
        assert_eq!(files(b), ["b.rs -> a/deep.rs"], "{b}");
    }
    // What stands inside a type is the type's.
    assert_eq!(files("const B: u8 = crate::a::X::C;"), ["b.rs -> a/x.rs"]);
    assert_eq!(files("fn g() { <crate::Renamed>::new(); }"), ["b.rs -> a/x.rs"]);
}

#[test]
fn variants_belong_to_their_enum() {
    let b = "pub enum E { One, Two { x: u8 } }";
    for a in [
        "fn g() { crate::b::E::One; }",
        "use crate::b::E::{One, Two};",
        "use crate::b::E; use E::*; fn g() { One; }",
        "fn g() { use crate::b::E::*; One; }",
        "fn g(e: u8) { if let crate::b::E::Two { x } = e {} }",
    ] {
        assert_eq!(between(a, b), ["a.rs -> b.rs"], "{a}");
    }
}

#[test]
fn only_what_a_facade_passes_on_from_below_is_no_arrow() {
    let files = |facade: &'static str| {
        let (x, other) = (("a/x.rs", "pub struct X;"), ("b.rs", "pub struct B;"));
        arrows(&[LIB, ("a/mod.rs", facade), x, other])
    };
    assert_eq!(files("mod x; pub(super) use x::X;"), [""; 0]);
    // It uses what it passes on, or does not pass it on.
    assert_eq!(files("mod x; pub use x::X; fn g(x: X) {}"), ["a/mod.rs -> a/x.rs"]);
    assert_eq!(files("mod x; use x::X;"), ["a/mod.rs -> a/x.rs"]);
    assert_eq!(files("mod x; fn g(x: x::X) {}"), ["a/mod.rs -> a/x.rs"]);
    // It passes on what is not its own.
    assert_eq!(files("mod x; pub use crate::b::B;"), ["a/mod.rs -> b.rs"]);
}

#[test]
fn a_file_and_its_folder_are_found_in_either_style() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "mod x; mod inline { mod y; }"),
        ("a/x.rs", "use super::super::b::B;"),
        ("a/inline/y.rs", "use super::super::x; use crate::b::B;"),
        ("b/mod.rs", "#[path = \"odd.rs\"] mod c; pub use c::B;"),
        ("b/odd.rs", "pub struct B;"),
        ("bin/tool.rs", "fn main() { small::run(); }"),
    ];
    assert_eq!(arrows(&files), ["a/x.rs -> b/odd.rs", "a/inline/y.rs -> b/odd.rs"]);
}

#[test]
fn a_name_may_be_a_module_and_a_function() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod load; pub use load::load;"),
        ("a/load.rs", "pub fn load() {}"),
        ("b.rs", "use crate::a::load; fn g() { load(); }"),
    ];
    assert_eq!(arrows(&files), ["b.rs -> a/load.rs"]);
}

#[test]
fn tests_are_left_out() {
    let b = "pub struct B; pub fn f() {}";
    for a in [
        "#[cfg(test)] mod tests { use crate::b::B; }",
        "#[cfg(all(test, unix))] mod tests { use crate::b::B; }",
        "#[cfg(test)] use crate::b::B;",
        "#[test] fn g() { crate::b::f(); }",
        "struct A; impl A { #[cfg(test)] fn g() { crate::b::f(); } }",
        "struct A { #[cfg(test)] b: crate::b::B }",
        "fn g() { #[cfg(test)] let b = crate::b::f(); }",
    ] {
        assert_eq!(between(a, b), [""; 0], "{a}");
    }
    for a in [
        "#[cfg(not(test))] use crate::b::B;",
        "#[cfg(any(test, feature = \"sim\"))] use crate::b::B;",
        "#[cfg(feature = \"test\")] use crate::b::B;",
    ] {
        assert_eq!(between(a, b), ["a.rs -> b.rs"], "{a}");
    }
    let files = [
        LIB,
        ("a/mod.rs", "#[cfg(test)] mod tests; #[cfg(test)] #[path = \"more.rs\"] mod others;"),
        ("a/tests.rs", "mod twin; use crate::b::B;"),
        ("a/tests/twin.rs", "use crate::b::B;"),
        ("a/more.rs", "use crate::b::B;"),
        ("b.rs", b),
    ];
    assert_eq!(arrows(&files), [""; 0]);
}

#[test]
fn tokens_of_macros_are_looked_through() {
    let b = "pub struct B; pub fn f() {} pub const END: u8 = 9;";
    for a in [
        "fn g() { println!(\"{}\", crate::b::f()); }",
        "use crate::b; fn g() { vec![Some(b::f())]; }",
        "macro_rules! m { () => { $crate::b::f() }; }",
        "fn g() { assert!(matches!(1, 0..=super::b::END)); }",
        "#[serde(with = \"crate::b\", default = \"crate::b::f\")] struct A;",
        "#[arg(value_parser = crate::b::f)] struct A;",
    ] {
        assert_eq!(between(a, b), ["a.rs -> b.rs"], "{a}");
    }
    // Fields, visibilities, docs and words that are no names of the module.
    for a in [
        "use super::*; fn g() { m!(x.b, pub(crate) y, pub(in crate::b) z); }",
        "/// [`crate::b::B`]\nstruct A;",
        "macro_rules! m { ($x:ident) => { crate::$x::f() }; }",
        "fn g() { m!(crate::b::not_yet!()); }",
    ] {
        assert_eq!(between(a, b), [""; 0], "{a}");
    }
}

#[test]
fn macros_belong_to_their_file_and_so_does_what_they_define() {
    let makes = "macro_rules! make { () => { pub struct Made; }; } make! {} pub(crate) use make;";
    assert_eq!(between("use crate::b::make;", makes), ["a.rs -> b.rs"]);
    assert_eq!(between("use crate::b::Made;", makes), ["a.rs -> b.rs"]);
    assert_eq!(between("fn g() { crate::b::make!(); }", makes), ["a.rs -> b.rs"]);
    let exported = "#[macro_export] macro_rules! out { () => {}; }";
    assert_eq!(between("fn g() { crate::out!(); }", exported), ["a.rs -> b.rs"]);
    // Visible below the place where it is defined, without an import.
    let files = [("lib.rs", "macro_rules! m { () => {}; } mod a;"), ("a.rs", "m!();")];
    assert_eq!(arrows(&files), ["a.rs -> lib.rs"]);
}

#[test]
fn a_block_has_names_of_its_own() {
    let b = "pub fn f() {}";
    // The import is one block's, the other calls its own.
    let a = "mod own { pub fn f() {} } fn g() { use own as b; b::f(); } fn h() { let b = 1; b; }";
    assert_eq!(between(a, b), [""; 0]);
    let a = "fn g() { { use crate::b as c; } struct c; c::f(); }";
    assert_eq!(between(a, b), [""; 0]);
    let a = "fn g() { use crate::b as c; { use c as d; d::f(); } }";
    assert_eq!(between(a, b), ["a.rs -> b.rs"]);
}

#[test]
fn names_that_lead_nowhere_are_told() {
    for (a, told) in [
        ("use crate::b::Missing;", "a.rs:1: `crate::b::Missing`: b.rs has no `Missing`"),
        ("\nfn g() { super::x(); }", "a.rs:2: `super::x`: lib.rs has no `x`"),
        ("use super::super::b::B;", "a.rs:1: `super::super::b::B`: lib.rs has no `super`"),
        ("fn g() { m!(crate::b::x); }", "a.rs:1: `crate::b::x`: b.rs has no `x`"),
        ("use crate::b; fn g() { b::x(); }", "a.rs:1: `b::x`: b.rs has no `x`"),
        ("use crate::c::*;", "a.rs:1: `crate::c`: lib.rs has no `c`"),
    ] {
        let (_, arrows) = small(&[LIB, ("a.rs", a), ("b.rs", "pub struct B;")]);
        assert_eq!(arrows.unresolved, [told]);
    }
    let (krate, _) = small(&[LIB, ("a.rs", ""), ("old.rs", "")]);
    let strays = ["lib.rs: no file for `mod b`", "old.rs: no module declares this file"];
    assert_eq!(krate.strays, strays);
}

#[test]
fn circles_are_found_with_their_arrows() {
    let (krate, found) = small(&[
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e; mod f;"),
        ("a.rs", "pub struct A;\nuse crate::b::B; use crate::d::D;"),
        ("b.rs", "pub struct B; fn g(a: crate::a::A) {}"),
        ("c.rs", "pub struct C; use crate::d::D;"),
        ("d.rs", "pub struct D; use crate::e::E; use crate::f::F;"),
        ("e.rs", "pub struct E; use crate::c::C;"),
        ("f.rs", "pub struct F;"),
    ]);
    let two = "small: a circle of 2 files, 2 arrows\n  \
               a.rs -> b.rs   `crate::b::B` in line 2\n  \
               b.rs -> a.rs   `crate::a::A` in line 1\n";
    let three = "small: a circle of 3 files, 3 arrows\n  \
                 c.rs -> d.rs   `crate::d::D` in line 1\n  \
                 d.rs -> e.rs   `crate::e::E` in line 1\n  \
                 e.rs -> c.rs   `crate::c::C` in line 1\n";
    assert_eq!(circles_of(&krate, &found), [two, three]);
}

#[test]
fn a_circle_through_a_facade_is_found() {
    let (krate, found) = small(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod x; pub use x::X; pub struct A;"),
        ("a/x.rs", "pub struct X; use super::A; use crate::b::B;"),
        ("b.rs", "pub struct B; use crate::a::X;"),
    ]);
    let circles = circles_of(&krate, &found);
    assert_eq!(circles.len(), 1, "{circles:?}");
    assert!(circles[0].contains("a/x.rs -> b.rs") && !circles[0].contains("mod.rs"));
}

#[test]
fn an_inherent_impl_apart_from_its_type_is_told() {
    let files = |path: &'static str, code: &'static str| {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a/mod.rs", "mod x; mod y; pub struct A<T>(T); pub use x::X; impl X {}");
        let (x, y) = (("a/x.rs", "pub struct X;"), ("a/y.rs", ""));
        let mut all = vec![lib, a, x, y, ("b.rs", "")];
        all.retain(|file| file.0 != path);
        all.push((path, code));
        small(&all).1.strangers
    };
    // Beside the type, in its folder, below it, and of a trait.
    for (path, code) in [
        ("a/x.rs", "pub struct X; mod more { impl super::X {} } impl<T> super::A<T> {}"),
        ("a/y.rs", "use super::X; impl X {}"),
        ("b.rs", "impl Clone for crate::a::X {} impl crate::a::T for crate::a::A<u8> {}"),
    ] {
        assert_eq!(files(path, code), [""; 0]);
    }
    let told = files("b.rs", "\nimpl crate::a::A<u8> {}");
    assert_eq!(told, ["b.rs:2: `impl crate::a::A`, but a/mod.rs defines it"]);
    let told = files("lib.rs", "mod a; mod b; pub struct L; impl a::X {}");
    assert_eq!(told, ["lib.rs:1: `impl a::X`, but a/x.rs defines it"]);
}

#[test]
fn fields_that_are_open_to_others_are_told() {
    let (krate, _) = small(&[
        ("lib.rs", "mod state; pub struct Store { pub open: u8 }"),
        ("state/mod.rs", "mod store; mod index;"),
        ("state/store.rs", "pub struct Store { own: u8, pub(crate) x: u8, pub(super) y: u8 }"),
        ("state/index.rs", "pub struct Index(u8, pub u8); pub struct Shut { own: u8 }"),
    ]);
    let fields = |name| open_fields(&krate, "state/", name);
    let told =
        |field: &str| format!("state/store.rs: field `{field}` of `Store` is open to others");
    assert_eq!(fields("Store"), Ok(vec![told("x"), told("y")]));
    let told = "state/index.rs: field `1` of `Index` is open to others".to_owned();
    assert_eq!(fields("Index"), Ok(vec![told]));
    assert_eq!(fields("Shut"), Ok(Vec::new()));
    assert_eq!(fields("Gone"), Err("small: no struct `Gone` in state/".to_owned()));
}
