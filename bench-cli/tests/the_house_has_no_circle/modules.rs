//! A crate as its modules: which file each stands in, and which names it has.
//!
//! Everything under `#[cfg(test)]` is left out, files declared there included.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Item, UseTree, Visibility};

pub(crate) type FileId = usize;
pub(crate) type ModuleId = usize;

/// A crate, parsed.
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) files: Vec<File>,
    pub(crate) modules: Vec<Module>,
    /// Files that no module declares, and declarations without a file.
    pub(crate) strays: Vec<String>,
}

/// A source file and the module that it is.
pub(crate) struct File {
    /// Relative to `src`.
    pub(crate) path: String,
    pub(crate) module: ModuleId,
}

/// A module: a file, or inline in one.
pub(crate) struct Module {
    pub(crate) file: FileId,
    pub(crate) parent: Option<ModuleId>,
    pub(crate) names: HashMap<String, Vec<Binding>>,
    pub(crate) globs: Vec<Vec<String>>,
    /// Names that a macro called here may define: it is not expanded, so each word of it counts.
    pub(crate) maybe: BTreeSet<String>,
    /// Everything but modules.
    pub(crate) items: Vec<Item>,
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) enum Binding {
    Module(ModuleId),
    Item(Definition),
    /// The path of a `use`.
    Import(Vec<String>),
}

/// An item, where it is defined.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Definition {
    pub(crate) file: FileId,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A type or trait, with its variants if it is an enum.
    Type {
        variants: Vec<String>,
    },
    /// A function, constant or static.
    Value,
    Macro,
}

impl Crate {
    /// Parses the files of a crate; their paths are relative to `src`.
    pub(crate) fn parse(name: &str, sources: &BTreeMap<String, String>) -> Self {
        let mut parser = Parser {
            sources,
            seen: BTreeSet::new(),
            result: Self {
                name: name.to_owned(),
                files: Vec::new(),
                modules: Vec::new(),
                strays: Vec::new(),
            },
        };
        for path in sources.keys() {
            if path == "lib.rs" || path == "main.rs" || is_binary(path) {
                parser.file(path, None);
            }
        }
        let stray = sources.keys().filter(|path| !parser.seen.contains(*path));
        let strays = stray.map(|path| format!("{path}: no module declares this file")).collect();
        let mut result = parser.result;
        result.strays = [result.strays, strays].concat();
        result
    }

    /// Is the first module the second one, or inside it?
    pub(crate) fn is_within(&self, inner: ModuleId, outer: ModuleId) -> bool {
        core::iter::successors(Some(inner), |&at| self.modules[at].parent).any(|at| at == outer)
    }

    pub(crate) fn root(&self, module: ModuleId) -> ModuleId {
        core::iter::successors(Some(module), |&at| self.modules[at].parent).last().unwrap_or(module)
    }

    pub(crate) fn file_of(&self, module: ModuleId) -> &File {
        &self.files[self.modules[module].file]
    }
}

fn is_binary(path: &str) -> bool {
    path.strip_prefix("bin/").is_some_and(|name| !name.contains('/') || name.ends_with("/main.rs"))
}

struct Parser<'a> {
    sources: &'a BTreeMap<String, String>,
    seen: BTreeSet<String>,
    result: Crate,
}

impl Parser<'_> {
    fn file(&mut self, path: &str, parent: Option<ModuleId>) -> ModuleId {
        self.seen.insert(path.to_owned());
        let parsed = syn::parse_file(&self.sources[path])
            .unwrap_or_else(|error| panic!("{path} of {}: {error}", self.result.name));
        let file = self.result.files.len();
        let module = self.module(file, parent);
        self.result.files.push(File { path: path.to_owned(), module });
        self.items(module, path, &folder_of_children(path), parsed.items);
        module
    }

    fn module(&mut self, file: FileId, parent: Option<ModuleId>) -> ModuleId {
        self.result.modules.push(Module {
            file,
            parent,
            names: HashMap::new(),
            globs: Vec::new(),
            maybe: BTreeSet::new(),
            items: Vec::new(),
        });
        self.result.modules.len() - 1
    }

    /// `folder` is where files of modules declared here stand.
    fn items(&mut self, module: ModuleId, path: &str, folder: &str, items: Vec<Item>) {
        for item in items {
            let tests_only = attributes(&item).is_some_and(is_test_only);
            match item {
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let child = if let Some((_, inner)) = item.content {
                        if tests_only {
                            continue;
                        }
                        let child = self.module(self.result.modules[module].file, Some(module));
                        self.items(child, path, &format!("{folder}{name}/"), inner);
                        child
                    } else {
                        let Some(file) = self.find(path, folder, &name, &item.attrs) else {
                            let text = format!("{path}: no file for `mod {name}`");
                            self.result.strays.push(text);
                            continue;
                        };
                        if tests_only {
                            self.forget(&file);
                            continue;
                        }
                        self.file(&file, Some(module))
                    };
                    self.bind(module, name, Binding::Module(child));
                }
                _ if tests_only => {}
                item => {
                    self.declare(module, &item);
                    self.result.modules[module].items.push(item);
                }
            }
        }
    }

    fn find(&self, path: &str, folder: &str, name: &str, attrs: &[Attribute]) -> Option<String> {
        let given = attrs.iter().filter(|one| one.path().is_ident("path")).find_map(|attribute| {
            let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
            literal(&pair.value)
        });
        let own = path.rsplit_once('/').map_or(String::new(), |(own, _)| format!("{own}/"));
        let files = match given {
            Some(given) => vec![format!("{own}{given}")],
            None => vec![format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")],
        };
        files.into_iter().find(|file| self.sources.contains_key(file))
    }

    /// A file of tests, and what stands below it.
    fn forget(&mut self, file: &str) {
        self.seen.insert(file.to_owned());
        let folder = folder_of_children(file);
        let below = self.sources.keys().filter(|path| path.starts_with(&folder)).cloned();
        // A `#[path]` may name a file beside its parent, which has no folder of its own.
        if file.ends_with("/mod.rs") || !folder.is_empty() {
            self.seen.extend(below.collect::<Vec<_>>());
        }
    }

    fn bind(&mut self, module: ModuleId, name: String, binding: Binding) {
        self.result.modules[module].names.entry(name).or_default().push(binding);
    }

    fn declare(&mut self, module: ModuleId, item: &Item) {
        let file = self.result.modules[module].file;
        let root = self.result.root(module);
        let mut found = Found::default();
        found.item(file, item);
        let exported = attributes(item)
            .is_some_and(|attrs| attrs.iter().any(|one| one.path().is_ident("macro_export")));
        for (name, binding) in found.names {
            if exported && module != root {
                self.bind(root, name.clone(), binding.clone());
            }
            self.bind(module, name, binding);
        }
        let target = &mut self.result.modules[module];
        target.globs.extend(found.globs);
        if let Item::Macro(item) = item {
            words(item.mac.tokens.clone(), &mut target.maybe);
        }
    }
}

/// Names that an item brings into the scope it stands in, be it a module or a block.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) names: Vec<(String, Binding)>,
    pub(crate) globs: Vec<Vec<String>>,
}

impl Found {
    pub(crate) fn item(&mut self, file: FileId, item: &Item) {
        let none = || Kind::Type { variants: Vec::new() };
        let (name, kind) = match item {
            Item::Struct(item) => (&item.ident, none()),
            Item::Union(item) => (&item.ident, none()),
            Item::Trait(item) => (&item.ident, none()),
            Item::TraitAlias(item) => (&item.ident, none()),
            Item::Type(item) => (&item.ident, none()),
            Item::Enum(item) => {
                let variants = item.variants.iter().map(|one| one.ident.to_string()).collect();
                (&item.ident, Kind::Type { variants })
            }
            Item::Fn(item) => (&item.sig.ident, Kind::Value),
            Item::Const(item) => (&item.ident, Kind::Value),
            Item::Static(item) => (&item.ident, Kind::Value),
            Item::Macro(item) => match &item.ident {
                Some(name) => (name, Kind::Macro),
                None => return,
            },
            Item::Use(item) => {
                for leaf in leaves(&item.tree) {
                    match leaf.name {
                        // Absolute: another crate's.
                        _ if item.leading_colon.is_some() => {}
                        Name::Glob => self.globs.push(leaf.path),
                        Name::Is(name) => self.names.push((name, Binding::Import(leaf.path))),
                        Name::Underscore => {}
                    }
                }
                return;
            }
            _ => return,
        };
        self.names.push((name.to_string(), Binding::Item(Definition { file, kind })));
    }
}

/// One name of a `use`.
pub(crate) struct Leaf {
    pub(crate) path: Vec<String>,
    pub(crate) name: Name,
    pub(crate) line: usize,
}

pub(crate) enum Name {
    Is(String),
    Underscore,
    Glob,
}

pub(crate) fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let mut all = Vec::new();
    gather(tree, &mut Vec::new(), &mut all);
    all
}

fn gather(tree: &UseTree, path: &mut Vec<String>, all: &mut Vec<Leaf>) {
    // `a::{self}` is `a`.
    let with = |path: &[String], name: &syn::Ident| {
        let own = (*name != "self" || path.is_empty()).then(|| name.to_string());
        path.iter().cloned().chain(own).collect::<Vec<_>>()
    };
    let line = |name: &syn::Ident| name.span().start().line;
    match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            gather(&tree.tree, path, all);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| gather(tree, path, all)),
        UseTree::Name(tree) => {
            let path = with(path, &tree.ident);
            let name = Name::Is(path.last().cloned().unwrap_or_default());
            all.push(Leaf { path, name, line: line(&tree.ident) });
        }
        UseTree::Rename(tree) => {
            let name = match tree.rename.to_string() {
                name if name == "_" => Name::Underscore,
                name => Name::Is(name),
            };
            all.push(Leaf { path: with(path, &tree.ident), name, line: line(&tree.ident) });
        }
        UseTree::Glob(tree) => {
            let line = tree.star_token.spans[0].start().line;
            all.push(Leaf { path: path.clone(), name: Name::Glob, line });
        }
    }
}

/// Where the files of a file's modules stand.
fn folder_of_children(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').map_or(("", path), |(folder, name)| (folder, name));
    let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder,
        _ if is_binary(path) => folder,
        _ => format!("{folder}{}/", name.trim_end_matches(".rs")),
    }
}

/// Every word of a macro's tokens.
fn words(tokens: TokenStream, all: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => drop(all.insert(word.to_string())),
            TokenTree::Group(group) => words(group.stream(), all),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn literal(value: &syn::Expr) -> Option<String> {
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

pub(crate) fn attributes(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

/// Is this compiled for tests alone?
pub(crate) fn is_test_only(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let is_cfg = attribute.path().is_ident("cfg");
        is_cfg && attribute.parse_args().is_ok_and(|condition| without_tests(&condition) == NO)
    })
}

const NO: Option<bool> = Some(false);

/// A condition's value when `test` is not set; nothing if it depends on something else.
fn without_tests(condition: &syn::Meta) -> Option<bool> {
    let parts = |list: &syn::MetaList| {
        let parse = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
        let parts = list.parse_args_with(parse).unwrap_or_default();
        parts.iter().map(without_tests).collect::<Vec<_>>()
    };
    match condition {
        syn::Meta::Path(path) if path.is_ident("test") => NO,
        syn::Meta::List(list) if list.path.is_ident("not") => {
            parts(list).first().copied().flatten().map(|value| !value)
        }
        syn::Meta::List(list) if list.path.is_ident("all") => {
            parts(list).contains(&NO).then_some(false)
        }
        syn::Meta::List(list) if list.path.is_ident("any") => {
            parts(list).iter().all(|part| *part == NO).then_some(false)
        }
        _ => None,
    }
}

/// Does the item pass a name on to others?
pub(crate) fn passes_on(visibility: &Visibility) -> bool {
    match visibility {
        Visibility::Inherited => false,
        Visibility::Public(_) => true,
        Visibility::Restricted(to) => !to.path.is_ident("self"),
    }
}
