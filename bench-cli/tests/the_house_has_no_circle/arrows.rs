//! Arrows between the files of a crate: who names an item that another file defines.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Ident, Spacing, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::modules::{
    Crate, FileId, Found, Kind, ModuleId, Name, attributes, is_test_only, leaves, passes_on,
};
use crate::names::{Scope, Target};

/// What is wanted of a crate's names.
#[derive(Default)]
pub(crate) struct Arrows {
    /// From a file to another, with the lines that make it so.
    pub(crate) all: BTreeMap<(FileId, FileId), BTreeSet<Cause>>,
    /// Names that lead nowhere. As long as there are none, the test is not blind.
    pub(crate) unresolved: Vec<String>,
    /// Inherent `impl` blocks that stand apart from their type.
    pub(crate) strangers: Vec<String>,
}

/// A line that names something of another file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cause {
    pub(crate) line: usize,
    pub(crate) name: String,
}

impl Arrows {
    pub(crate) fn of(krate: &Crate) -> Self {
        let mut arrows = Self::default();
        for (module, this) in krate.modules.iter().enumerate() {
            let mut walker = Walker { krate, module, blocks: Vec::new(), arrows: &mut arrows };
            for item in &this.items {
                walker.visit_item(item);
            }
        }
        arrows
    }
}

struct Walker<'a> {
    krate: &'a Crate,
    module: ModuleId,
    blocks: Vec<Found>,
    arrows: &'a mut Arrows,
}

impl Walker<'_> {
    fn resolve(&self, path: &[String]) -> Result<Vec<Target>, String> {
        let scope = Scope { krate: self.krate, module: self.module, blocks: &self.blocks };
        scope.resolve(path).map_err(|missing| {
            let file = &self.krate.file_of(missing.module).path;
            format!("`{}`: {file} has no `{}`", path.join("::"), missing.name)
        })
    }

    fn own_file(&self) -> FileId {
        self.krate.modules[self.module].file
    }

    /// An arrow to each file that defines what the path names.
    fn point(&mut self, path: &[String], line: usize, targets: &[Target]) {
        for target in targets {
            if let Target::Item(item) = target
                && item.file != self.own_file()
            {
                let cause = Cause { line, name: path.join("::") };
                self.arrows.all.entry((self.own_file(), item.file)).or_default().insert(cause);
            }
        }
    }

    fn follow(&mut self, path: &[String], line: usize) {
        match self.resolve(path) {
            Ok(targets) => self.point(path, line, &targets),
            Err(why) => self.blind(line, &why),
        }
    }

    fn blind(&mut self, line: usize, why: &str) {
        let at = &self.krate.file_of(self.module).path;
        self.arrows.unresolved.push(format!("{at}:{line}: {why}"));
    }

    /// A macro that is visible because it stands further up, with no import.
    fn macro_above(&self, name: &str) -> Vec<Target> {
        let parents = |&at: &ModuleId| self.krate.modules[at].parent;
        let above = core::iter::successors(Some(self.module), parents);
        let module = |path: ModuleId| Scope { krate: self.krate, module: path, blocks: &[] };
        let found = above.filter_map(|at| module(at).resolve(&[name.to_owned()]).ok());
        let is_macro = |one: &Target| matches!(one, Target::Item(item) if item.kind == Kind::Macro);
        found.flatten().find(is_macro).into_iter().collect()
    }

    /// Looks for paths in tokens that are not parsed.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => {
                    // `pub(crate)`, `pub(in crate::x)`.
                    let visibility = group.delimiter() == Delimiter::Parenthesis
                        && at > 0
                        && matches!(&tokens[at - 1], TokenTree::Ident(word) if *word == "pub");
                    if !visibility {
                        self.scan(group.stream());
                    }
                    at += 1;
                }
                TokenTree::Ident(first) => {
                    let (path, end) = path_at(&tokens, at);
                    let before = at.checked_sub(1).map(|before| &tokens[before]);
                    let is_field = matches!(before, Some(TokenTree::Punct(p)) if p.as_char() == '.')
                        // `0..END` is a range.
                        && !(at > 1 && is_punct(&tokens[at - 2], '.'));
                    let is_absolute = matches!(before, Some(TokenTree::Punct(p)) if p.as_char() == ':')
                        && at > 1
                        && is_punct(&tokens[at - 2], ':');
                    if !is_field && !is_absolute {
                        self.words(&path, first, tokens.get(end));
                    }
                    at = end;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
            }
        }
    }

    fn words(&mut self, path: &[String], first: &Ident, after: Option<&TokenTree>) {
        let line = first.span().start().line;
        match self.resolve(path) {
            Ok(targets) => self.point(path, line, &targets),
            // `super::f!()`, or a word that only looks like a path.
            Err(_) if after.is_some_and(|token| is_punct(token, '!')) => {}
            Err(why) if starts_here(path) => self.blind(line, &why),
            Err(_) => {}
        }
    }

    /// Looks for paths in the texts of an attribute, as in `#[serde(with = "super::hex")]`.
    fn texts(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.texts(group.stream()),
                TokenTree::Literal(literal) => {
                    let line = literal.span().start().line;
                    let text = syn::parse_str::<syn::LitStr>(&literal.to_string());
                    let path = text.and_then(|text| text.parse::<syn::Path>());
                    let Ok(path) = path else { continue };
                    let path = segments(&path);
                    if starts_here(&path) {
                        self.follow(&path, line);
                    } else if let Ok(targets) = self.resolve(&path) {
                        self.point(&path, line, &targets);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Walker<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes(item).is_some_and(is_test_only) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(item) => &item.attrs,
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Type(item) => &item.attrs,
            syn::ImplItem::Macro(item) => &item.attrs,
            _ => return,
        };
        if !is_test_only(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if !is_test_only(&item.attrs) {
            visit::visit_trait_item_fn(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test_only(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_test_only(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_test_only(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let mut found = Found::default();
        for statement in &block.stmts {
            if let syn::Stmt::Item(item) = statement
                && !attributes(item).is_some_and(is_test_only)
            {
                found.item(self.own_file(), item);
            }
        }
        self.blocks.push(found);
        visit::visit_block(self, block);
        self.blocks.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_some() {
            return;
        }
        let own = self.krate.file_of(self.module).module;
        for leaf in leaves(&item.tree) {
            match self.resolve(&leaf.path) {
                // A glob points where the names point that it brings.
                Ok(_) if matches!(leaf.name, Name::Glob) => {}
                Ok(mut targets) => {
                    // What a facade passes on from its own folder is a name, no dependency.
                    if passes_on(&item.vis) {
                        targets.retain(|target| match target {
                            Target::Item(item) => {
                                !self.krate.is_within(self.krate.files[item.file].module, own)
                            }
                            Target::Module(_) | Target::Outside => false,
                        });
                    }
                    self.point(&leaf.path, leaf.line, &targets);
                }
                Err(why) => self.blind(leaf.line, &why),
            }
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty)
            && of.qself.is_none()
        {
            let path = segments(&of.path);
            let own = self.krate.file_of(self.module).module;
            for target in self.resolve(&path).unwrap_or_default() {
                let Target::Item(of) = target else { continue };
                let home = &self.krate.files[of.file];
                let here = &self.krate.file_of(self.module).path;
                // The folder of the type, for a type that has one of its own.
                let folder = home.path.rsplit_once('/').map(|(folder, _)| format!("{folder}/"));
                let beside = folder.is_some_and(|folder| here.starts_with(&folder));
                if !beside && !self.krate.is_within(own, home.module) {
                    let line = item.impl_token.span.start().line;
                    self.arrows.strangers.push(format!(
                        "{}:{line}: `impl {}`, but {} defines it",
                        self.krate.file_of(self.module).path,
                        path.join("::"),
                        home.path,
                    ));
                }
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none()
            && let Some(first) = path.segments.first()
        {
            self.follow(&segments(path), first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        if item.path.leading_colon.is_none()
            && let Some(first) = item.path.segments.first()
        {
            let (path, line) = (segments(&item.path), first.ident.span().start().line);
            match self.resolve(&path) {
                Ok(targets) if targets.is_empty() && path.len() == 1 => {
                    let above = self.macro_above(&path[0]);
                    self.point(&path, line, &above);
                }
                Ok(targets) => self.point(&path, line, &targets),
                // A macro that a macro made.
                Err(_) => {}
            }
        }
        self.scan(item.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.scan(list.tokens.clone());
            self.texts(list.tokens.clone());
        }
    }
}

fn starts_here(path: &[String]) -> bool {
    path.first().is_some_and(|first| ["crate", "self", "super"].contains(&first.as_str()))
        && path.len() > 1
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn is_punct(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == sign)
}

/// The words joined by `::` from here on, and the index after them.
fn path_at(tokens: &[TokenTree], start: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    let mut at = start;
    while let Some(TokenTree::Ident(word)) = tokens.get(at) {
        path.push(word.to_string());
        at += 1;
        let joined = matches!(tokens.get(at), Some(TokenTree::Punct(sign))
            if sign.as_char() == ':' && sign.spacing() == Spacing::Joint)
            && tokens.get(at + 1).is_some_and(|sign| is_punct(sign, ':'))
            && matches!(tokens.get(at + 2), Some(TokenTree::Ident(_)));
        if !joined {
            break;
        }
        at += 2;
    }
    (path, at)
}
