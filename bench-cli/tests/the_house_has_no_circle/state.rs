//! The state of a part is its own: no field of it is open to others.

use syn::{Item, Visibility};

use crate::modules::{Crate, is_test_only};

/// Fields of the struct that others may touch, or why that cannot be said. The struct is looked
/// for in the files below a folder of `src`.
pub(crate) fn open_fields(krate: &Crate, folder: &str, name: &str) -> Result<Vec<String>, String> {
    let mut found = 0;
    let mut open = Vec::new();
    for module in &krate.modules {
        let path = &krate.files[module.file].path;
        if !path.starts_with(folder) {
            continue;
        }
        for item in &module.items {
            let Item::Struct(item) = item else { continue };
            if item.ident != name {
                continue;
            }
            found += 1;
            for (index, field) in item.fields.iter().enumerate() {
                if !matches!(field.vis, Visibility::Inherited) && !is_test_only(&field.attrs) {
                    let own = field.ident.as_ref().map_or(index.to_string(), ToString::to_string);
                    open.push(format!("{path}: field `{own}` of `{name}` is open to others"));
                }
            }
        }
    }
    match found {
        1 => Ok(open),
        0 => Err(format!("{}: no struct `{name}` in {folder}", krate.name)),
        _ => Err(format!("{}: {found} structs `{name}` in {folder}", krate.name)),
    }
}
