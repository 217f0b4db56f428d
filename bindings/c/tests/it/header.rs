//! `include/pleach.h` is what the Rust source says, comments included. `PLEACH_BLESS=1` writes it.

use std::fmt::Write as _;
use std::path::Path;

/// In the order of the header.
const FILES: [&str; 10] =
    ["error", "bytes", "db", "session", "cursor", "batch", "block", "load", "watch", "verify"];

/// An item of the source: the lines of its comment, and its code up to the body or the semicolon, in one line.
struct Item {
    comment: Vec<String>,
    code: String,
}

#[test]
fn the_header_is_that_of_the_source() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).expect(path);
    let files = FILES.iter();
    let items: Vec<Item> = files.flat_map(|file| items(&read(&format!("src/{file}.rs")))).collect();
    let mut header = String::new();
    let rules = read("src/lib.rs");
    let rules = rules.lines().map_while(|line| line.strip_prefix("//!"));
    let rules = rules.map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned());
    comment(&mut header, "", &rules.collect::<Vec<_>>());
    header += "#ifndef PLEACH_H\n#define PLEACH_H\n\n#include <stdbool.h>\n#include <stddef.h>\n\
               #include <stdint.h>\n\n/* An error that nobody looks at is a warning of the compiler. */\n#ifdef __GNUC__\n\
               #define PLEACH_CHECK __attribute__((warn_unused_result))\n#else\n#define PLEACH_CHECK\n#endif\n\n\
               #ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
    // All types come before the functions that name them.
    for item in items.iter().filter(|item| !item.code.contains("extern \"C\" fn ")) {
        declare(&mut header, item);
    }
    let functions = items.iter().filter(|item| item.code.contains("extern \"C\" fn "));
    let count = functions.clone().map(|item| declare(&mut header, item)).count();
    header += "#ifdef __cplusplus\n}\n#endif\n\n#endif\n";
    assert!(count > 40, "only {count} functions");
    // No file and no function is left out.
    let sources = std::fs::read_dir(folder.join("src"))
        .expect("sources")
        .map(|entry| std::fs::read_to_string(entry.expect("an entry").path()).expect("a source"));
    let exported: usize = sources.map(|text| text.matches("#[unsafe(no_mangle)]").count()).sum();
    assert_eq!(exported, count, "functions that are exported");
    let path = folder.join("include/pleach.h");
    if std::env::var_os("PLEACH_BLESS").is_some() {
        std::fs::write(&path, &header).expect("written");
    }
    assert!(
        read("include/pleach.h") == header,
        "run this test with PLEACH_BLESS=1, and commit pleach.h"
    );
}

/// The public items with a comment, of the text before the unit tests.
fn items(text: &str) -> Vec<Item> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = Vec::new();
    let mut lines = text.lines();
    let (mut comment, mut is_c) = (Vec::new(), false);
    while let Some(line) = lines.next() {
        if let Some(said) = line.strip_prefix("///") {
            comment.push(said.strip_prefix(' ').unwrap_or(said).to_owned());
            continue;
        }
        if line.starts_with("#[") {
            is_c |= line == "#[repr(C)]" || line == "#[unsafe(no_mangle)]";
            continue;
        }
        is_c |= line.starts_with("pub const PLEACH_") || line.starts_with("pub type Pleach");
        if is_c {
            let end = if line.starts_with("pub struct") { "}" } else { "{" };
            let mut code = line.to_owned();
            while !code.ends_with(end) && !code.ends_with(';') {
                code += "\n";
                code += lines.next().expect("the end of an item");
            }
            found.push(Item { comment: std::mem::take(&mut comment), code });
        }
        (comment, is_c) = (Vec::new(), false);
    }
    found
}

fn declare(header: &mut String, item: &Item) {
    assert!(!item.comment.is_empty(), "no comment: {}", item.code);
    comment(header, "", &item.comment);
    let code = item.code.strip_prefix("pub ").expect("public");
    if let Some(constant) = code.strip_prefix("const ") {
        let (name, rest) = constant.split_once(": ").expect("a type");
        let value = rest.split_once(" = ").expect("a value").1.trim_end_matches(';');
        writeln!(header, "#define {name} {value}\n").expect("text");
    } else if let Some(of) = code.strip_prefix("type ").filter(|of| of.contains(" fn(")) {
        let name = snake(of.split_once(' ').expect("a name").0);
        let parameters = of.split_once(" fn(").expect("parameters").1.split_once(')');
        let parameters = parameters.expect("parameters").0.split(", ").map(variable);
        let parameters = parameters.collect::<Vec<_>>().join(", ");
        writeln!(header, "typedef void (*{name})({parameters});\n").expect("text");
    } else if let Some(handle) = code.strip_prefix("type ") {
        let name = snake(handle.split_once(' ').expect("a name").0);
        writeln!(header, "typedef struct {name} {name};\n").expect("text");
    } else if let Some(fields) = code.strip_prefix("struct ") {
        let (name, fields) = fields.split_once(" {\n").expect("fields");
        let name = snake(name);
        writeln!(header, "typedef struct {name} {{").expect("text");
        let mut lines = Vec::new();
        for line in fields.lines().map(str::trim) {
            if let Some(said) = line.strip_prefix("/// ") {
                lines.push(said.to_owned());
            } else if let Some(field) = line.strip_prefix("pub ") {
                comment(header, "    ", &std::mem::take(&mut lines));
                writeln!(header, "    {};", variable(field.trim_end_matches(','))).expect("text");
            } else {
                lines.clear(); // Private: behind what C sees.
            }
        }
        writeln!(header, "}} {name};\n").expect("text");
    } else {
        let (_, signature) = code.split_once(" fn ").expect("a function");
        let (name, rest) = signature.split_once('(').expect("parameters");
        let (parameters, result) = rest.rsplit_once(')').expect("parameters");
        let result = match result.trim_end_matches('{').trim() {
            "" => "void ".to_owned(),
            "-> Failed" => "PLEACH_CHECK pleach_error *".to_owned(),
            "-> *const c_char" => "const char *".to_owned(),
            other => panic!("{name} gives {other}"),
        };
        let parameters = parameters.replace('\n', " ");
        let parameters = parameters.split(", ").map(|one| one.trim().trim_end_matches(','));
        let mut parameters: Vec<String> =
            parameters.filter(|one| !one.is_empty()).map(variable).collect();
        if parameters.is_empty() {
            parameters.push("void".to_owned());
        }
        let line = format!("{result}{name}({});", parameters.join(", "));
        let lines = format!("{result}{name}(\n    {});", parameters.join(",\n    "));
        writeln!(header, "{}\n", if line.len() <= 100 { line } else { lines }).expect("text");
    }
}

/// `name: Type` as C declares it.
fn variable(field: &str) -> String {
    let (name, of) = field.split_once(": ").expect("a type");
    // A word of C++.
    let name = if name == "namespace" { "ns" } else { name };
    let inner = |start: &str| of.strip_prefix(start).and_then(|rest| rest.strip_suffix('>'));
    let plain = |of: &str| match of {
        // Several keys are their bytes.
        "u8" | "Key" => "uint8_t".to_owned(),
        "u32" => "uint32_t".to_owned(),
        "u64" => "uint64_t".to_owned(),
        "usize" => "size_t".to_owned(),
        "bool" => "bool".to_owned(),
        "c_char" => "char".to_owned(),
        "c_void" => "void".to_owned(),
        handle if handle.starts_with("Pleach") => snake(handle),
        other => panic!("{name} has the type {other}"),
    };
    if let Some(of) = inner("Out<") {
        return match of.strip_prefix("Box<").and_then(|of| of.strip_suffix('>')) {
            Some(handle) => format!("{} **{name}", plain(handle)),
            None if of == "Key" => format!("uint8_t {name}[32]"),
            None if of == "[u8; 256]" => format!("uint8_t {name}[256]"),
            None => format!("{} *{name}", plain(of)),
        };
    }
    match (of, inner("Option<&"), inner("Option<Box<")) {
        ("Option<&Key>", ..) => format!("const uint8_t {name}[32]"),
        ("*mut Owner", ..) => format!("void *{name}"),
        (_, Some(handle), _) => {
            format!("{} *{name}", plain(handle.trim_start_matches("mut ")))
        }
        (.., Some(handle)) => format!("{} *{name}", plain(handle.trim_end_matches('>'))),
        _ => match (of.strip_prefix("*const "), of.strip_prefix("*mut ")) {
            (Some(of), _) => format!("const {} *{name}", plain(of)),
            (_, Some(of)) => format!("{} *{name}", plain(of)),
            _ => format!("{} {name}", plain(of)),
        },
    }
}

/// `PleachDb` as `pleach_db`.
fn snake(name: &str) -> String {
    let mut all = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !all.is_empty() {
            all.push('_');
        }
        all.push(letter.to_ascii_lowercase());
    }
    all
}

fn comment(header: &mut String, indent: &str, lines: &[String]) {
    for (at, line) in lines.iter().enumerate() {
        let start = if at == 0 { "/*" } else { " *" };
        let end = if at + 1 == lines.len() { " */" } else { "" };
        let line = format!("{indent}{start} {line}");
        writeln!(header, "{}{end}", line.trim_end()).expect("text");
    }
}
