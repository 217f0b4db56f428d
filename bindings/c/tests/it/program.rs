//! `program.c` calls every function of the header, linked with the static library and checked by the address and
//! undefined-behaviour sanitizers where the compiler has them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What Rust's standard library needs of the system: `cargo rustc -p pleach-c --lib --crate-type staticlib --
/// --print native-static-libs` prints it.
const SYSTEM: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// The static library: cargo builds all kinds of the library for its tests, and puts it beside their programs.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    test.with_file_name("libpleach_c.a")
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{errors}", output.status);
    output
}

/// The compiler with these flags; none where it is not installed, or cannot link a program with them.
fn compiler(name: &str, flags: &[&str], scratch: &Path) -> Option<Command> {
    let empty = scratch.join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").expect("written");
    let mut compiler = Command::new(name);
    compiler.args(flags);
    let mut trial = Command::new(name);
    trial.args(flags).arg(empty).arg("-o").arg(scratch.join("empty"));
    let works = trial.output().is_ok_and(|output| output.status.success());
    works.then_some(compiler)
}

#[test]
fn a_c_program_uses_every_function() {
    let scratch = tempfile::tempdir().expect("a folder");
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(own.join(path)).expect(path);
    let (header, source) = (read("include/pleach.h"), read("tests/program.c"));
    let declared = header.lines().filter_map(|line| {
        let line =
            line.strip_prefix("PLEACH_CHECK pleach_error *").or(line.strip_prefix("void "))?;
        Some(line.split_once('(')?.0)
    });
    let unused: Vec<&str> = declared.filter(|name| !source.contains(&format!("{name}("))).collect();
    assert!(unused.is_empty(), "program.c does not call {unused:?}");

    let Some(plain) = compiler("cc", &[], scratch.path()) else {
        println!("a C program: SKIPPED, no C compiler `cc` is installed");
        return;
    };
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let mut compiler = compiler("cc", &sanitizers, scratch.path()).unwrap_or_else(|| {
        println!("sanitizers of a C program: SKIPPED, `cc` has none");
        plain
    });
    let program = scratch.path().join("program");
    compiler.args(["-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_GNU_SOURCE"]);
    compiler.arg("-I").arg(own.join("include")).arg(own.join("tests/program.c"));
    // The library after the program that needs it, the system's after the library.
    compiler.arg(library()).args(SYSTEM).arg("-o").arg(&program);
    run(&mut compiler);
    let output = run(Command::new(&program).arg(scratch.path().join("state")));
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// The first blocks of C in pages are whole programs, in C99 and C++17, which open a database in the current folder.
#[test]
fn the_programs_of_the_pages_run() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in ["README.md", "../../docs/bindings.md"] {
        // A package has no files from outside its folder.
        let Ok(text) = std::fs::read_to_string(own.join(page)) else { continue };
        let block = text.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
        for (name, language) in [("cc", &["-xc", "-std=c99"]), ("c++", &["-xc++", "-std=c++17"])] {
            let scratch = tempfile::tempdir().expect("a folder");
            let Some(mut compiler) = compiler(name, &[], scratch.path()) else {
                println!("a program of {page}: SKIPPED, no compiler `{name}` is installed");
                continue;
            };
            let (source, program) = (scratch.path().join("page.c"), scratch.path().join("page"));
            std::fs::write(&source, block.expect("a block of C")).expect("written");
            compiler.args(language).args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
            compiler.arg(own.join("include")).arg(source).arg("-xnone").arg(library());
            run(compiler.args(SYSTEM).arg("-o").arg(&program));
            run(Command::new(program).current_dir(scratch.path()));
            assert!(scratch.path().join("state/super").is_file(), "{page}: a database is there");
        }
    }
}

#[test]
fn the_header_is_cpp_too() {
    let scratch = tempfile::tempdir().expect("a folder");
    let Some(mut compiler) = compiler("c++", &["-xc++"], scratch.path()) else {
        println!("the header in C++: SKIPPED, no compiler `c++` is installed");
        return;
    };
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/pleach.h");
    run(compiler.args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).arg(header));
}

/// Without a SONAME, a program that was linked with the library looks for it at the path that it had then.
#[test]
fn the_shared_library_has_a_soname() {
    let library = library().with_extension("so");
    let Ok(output) = Command::new("readelf").arg("-d").arg(&library).output() else {
        println!("the library's SONAME: SKIPPED, `readelf` is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Library soname: [libpleach_c.so]"), "{}: {text}", library.display());
}

/// A commit whose error nobody looks at is a warning.
#[test]
fn an_error_that_nobody_looks_at_is_a_warning() {
    let scratch = tempfile::tempdir().expect("a folder");
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let call = |checked: &str| {
        let source = scratch.path().join("call.c");
        let body = format!("void call(pleach_block *block) {{ uint64_t number; {checked}; }}");
        std::fs::write(&source, format!("#include \"pleach.h\"\n{body}\n")).expect("written");
        let compiler = compiler("cc", &[], scratch.path());
        compiler.map(|mut compiler| {
            compiler.args(["-Wall", "-Werror", "-c", "-I"]).arg(&header).arg(&source);
            compiler.arg("-o").arg(scratch.path().join("call.o"));
            compiler.output().expect("a compiler").status.success()
        })
    };
    let commit = "pleach_block_commit(block, &number)";
    let Some(passes) = call(commit) else {
        println!("warnings of a C program: SKIPPED, no C compiler `cc` is installed");
        return;
    };
    assert!(!passes);
    assert_eq!(call(&format!("if ({commit}) return")), Some(true));
}
