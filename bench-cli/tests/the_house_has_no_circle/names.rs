//! From a path to the files that define what it names, through every re-export on the way.

use crate::modules::{Binding, Crate, Definition, Found, Kind, ModuleId};

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Module(ModuleId),
    Item(Definition),
    /// Another crate's.
    Outside,
}

/// A module of the crate does not have this name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) module: ModuleId,
    pub(crate) name: String,
}

/// Where a name is looked up: a module, and the blocks of a function inside it.
pub(crate) struct Scope<'a> {
    pub(crate) krate: &'a Crate,
    pub(crate) module: ModuleId,
    /// Outermost first.
    pub(crate) blocks: &'a [Found],
}

/// Imports that are being followed: an import may name itself, as in `use load::load`.
type Followed = Vec<(ModuleId, String, usize)>;

impl Scope<'_> {
    /// Everything that the path may name, in all name spaces; nothing if it does not begin with
    /// a name of this crate (a local variable, a type parameter, another crate).
    pub(crate) fn resolve(&self, path: &[String]) -> Result<Vec<Target>, Missing> {
        let mut followed = Followed::new();
        let Some((first, rest)) = path.split_first() else { return Ok(Vec::new()) };
        for (depth, block) in self.blocks.iter().enumerate().rev() {
            // An import of a block sees the blocks around it.
            let outer = Scope { blocks: &self.blocks[..depth], ..*self };
            let mut targets = Vec::new();
            for (_, binding) in block.names.iter().filter(|(name, _)| name == first) {
                targets.extend(match binding {
                    Binding::Module(module) => vec![Target::Module(*module)],
                    Binding::Item(item) => vec![Target::Item(item.clone())],
                    Binding::Import(path) => or_outside(outer.resolve(path)?),
                });
            }
            for glob in &block.globs {
                targets.extend(
                    outer
                        .resolve(glob)?
                        .into_iter()
                        .flat_map(|target| within_glob(self.krate, &target, first, &mut followed)),
                );
            }
            if !targets.is_empty() {
                return walk(self.krate, targets, rest, &mut followed);
            }
        }
        resolve(self.krate, self.module, path, &mut followed)
    }
}

fn or_outside(targets: Vec<Target>) -> Vec<Target> {
    if targets.is_empty() { vec![Target::Outside] } else { targets }
}

fn resolve(
    krate: &Crate,
    module: ModuleId,
    path: &[String],
    followed: &mut Followed,
) -> Result<Vec<Target>, Missing> {
    let Some((first, mut rest)) = path.split_first() else { return Ok(Vec::new()) };
    let targets = match first.as_str() {
        "crate" => vec![Target::Module(krate.root(module))],
        "self" | "super" => {
            let mut at = module;
            if first == "super" {
                at = parent(krate, at)?;
            }
            while let Some((next, more)) = rest.split_first()
                && next == "super"
            {
                at = parent(krate, at)?;
                rest = more;
            }
            vec![Target::Module(at)]
        }
        name => lookup(krate, module, name, followed)?,
    };
    walk(krate, targets, rest, followed)
}

fn parent(krate: &Crate, module: ModuleId) -> Result<ModuleId, Missing> {
    krate.modules[module].parent.ok_or(Missing { module, name: "super".to_owned() })
}

/// Follows the rest of a path. What stands in a type (its variants and associated items) is the
/// type's.
fn walk(
    krate: &Crate,
    mut targets: Vec<Target>,
    rest: &[String],
    followed: &mut Followed,
) -> Result<Vec<Target>, Missing> {
    for name in rest {
        let mut next = Vec::new();
        let mut missing = None;
        for target in targets {
            match target {
                Target::Module(module) => {
                    let found = lookup(krate, module, name, followed)?;
                    if found.is_empty() {
                        missing = Some(Missing { module, name: name.clone() });
                    }
                    next.extend(found);
                }
                Target::Item(item) if matches!(item.kind, Kind::Type { .. }) => {
                    next.push(Target::Item(item));
                }
                // A function or a macro has nothing inside.
                Target::Item(_) => {}
                Target::Outside => next.push(Target::Outside),
            }
        }
        if let (true, Some(missing)) = (next.is_empty(), missing) {
            return Err(missing);
        }
        targets = next;
    }
    targets.sort();
    targets.dedup();
    Ok(targets)
}

/// A name of a module: its own, or one that it imports.
fn lookup(
    krate: &Crate,
    module: ModuleId,
    name: &str,
    followed: &mut Followed,
) -> Result<Vec<Target>, Missing> {
    let this = &krate.modules[module];
    let mut targets = Vec::new();
    for (index, binding) in this.names.get(name).into_iter().flatten().enumerate() {
        match binding {
            Binding::Module(child) => targets.push(Target::Module(*child)),
            Binding::Item(item) => targets.push(Target::Item(item.clone())),
            Binding::Import(path) => {
                let step = (module, name.to_owned(), index);
                if !followed.contains(&step) {
                    followed.push(step);
                    let found = resolve(krate, module, path, followed);
                    followed.pop();
                    targets.extend(or_outside(found?));
                }
            }
        }
    }
    let mut open = false;
    for (index, glob) in this.globs.iter().enumerate() {
        // Names of the module itself come first.
        let step = (module, format!("{name}*"), index);
        if targets.is_empty() && !followed.contains(&step) {
            followed.push(step);
            let sources = or_outside(resolve(krate, module, glob, followed)?);
            open |= sources.contains(&Target::Outside);
            for target in sources {
                targets.extend(within_glob(krate, &target, name, followed));
            }
            followed.pop();
        }
    }
    if targets.is_empty() && this.maybe.contains(name) {
        let kind = Kind::Type { variants: Vec::new() };
        targets.push(Target::Item(Definition { file: this.file, kind }));
    }
    // It may be a name that another crate's glob brings.
    if targets.is_empty() && open {
        targets.push(Target::Outside);
    }
    Ok(targets)
}

/// What a name is, if it comes from a glob import of this.
fn within_glob(krate: &Crate, target: &Target, name: &str, followed: &mut Followed) -> Vec<Target> {
    match target {
        Target::Module(module) => lookup(krate, *module, name, followed).unwrap_or_default(),
        Target::Item(Definition { kind: Kind::Type { variants }, .. })
            if variants.iter().any(|variant| variant == name) =>
        {
            vec![target.clone()]
        }
        Target::Item(_) | Target::Outside => Vec::new(),
    }
}
