//! `nomt-bench init`: loads the databases and prints how that went.

use crate::args::InitArgs;
use crate::args::values::Switch;
use crate::command::prepare::ensure_loaded;
use crate::draws::{Distribution, Stream};
use crate::error::{BenchError, Result};
use crate::machine::Machine;
use crate::report::{self, json};
use crate::setting::{Extra, Setting};
use crate::text::hex;
use crate::{interrupt, output};

/// Loads each backend's database.
pub(crate) fn init(args: InitArgs) -> Result<()> {
    if args.common.dir.is_none() && !args.common.keep {
        let text = "init without --dir would remove what it loads: add --dir DIR or --keep";
        return Err(BenchError::Usage(text.to_owned()));
    }
    let extra = Extra {
        stream: Stream {
            seed: args.common.seed,
            batch: 1,
            fresh: 0,
            closing: None,
            distribution: Distribution::Uniform,
        },
        witness: Switch(false),
        prefetch: Switch(true),
        overlay_window: 0,
        ahead: false,
        batches: 0,
        written: 0,
        alternate: None,
        timed: false,
    };
    let setting = Setting::new(args.common, &extra)?;
    let mut loads = Vec::new();
    for &kind in &setting.kinds {
        let load = ensure_loaded(&setting, kind, None);
        let Some((loaded, loaded_now)) = interrupt::left_out(load, !loads.is_empty())? else {
            break;
        };
        loads.push((kind, loaded, loaded_now));
    }
    let printed = output::print(&report::table::loads(&loads));
    if let Some(path) = &setting.common.json {
        let machine = Machine::describe(setting.home.root());
        json::write_loads(path, &machine, &setting, &loads)?;
    }
    printed?;
    if let Some(first) = loads.first()
        && let Some(other) = loads.iter().find(|load| load.1.root != first.1.root)
    {
        return Err(BenchError::Wrong(format!(
            "{} loaded to root {}, {} to {}",
            first.0.name(),
            hex(&first.1.root.0),
            other.0.name(),
            hex(&other.1.root.0)
        )));
    }
    interrupt::after_printing()
}
