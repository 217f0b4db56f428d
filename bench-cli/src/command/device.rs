//! `nomt-bench device`: measures and prints.

use serde_json::json;

use crate::args::DeviceArgs;
use crate::device::{self, Row, Suite};
use crate::error::Result;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::{Grid, json};
use crate::text::number;
use crate::{interrupt, output};

/// Measures the folder's device.
pub(crate) fn device(args: &DeviceArgs) -> Result<()> {
    output::check_file(args.json.as_deref())?;
    let machine = Machine::describe(&args.dir);
    let bar = Progress::new(false, "device", "measurements");
    let suite = device::run(args, |done, of| bar.at(done, of))?;
    drop(bar);
    let printed = output::print(&table(args, &machine, &suite));
    if let Some(path) = &args.json {
        json::write(path, &document(args, &machine, &suite))?;
    }
    printed?;
    interrupt::after_printing()
}

fn table(args: &DeviceArgs, machine: &Machine, suite: &Suite) -> String {
    let mut grid = Grid::default();
    let head = ["", "a second", "MiB/s", "p50, us", "p99, us", "fio, a second", "ours / fio"];
    grid.row(head.map(str::to_owned));
    for row in &suite.rows {
        let Row { name, ours, fio } = row;
        grid.row([
            name.clone(),
            number(ours.per_second),
            number(ours.mib_per_second),
            number(ours.latency.p50 * 1000.0),
            number(ours.latency.p99 * 1000.0),
            fio.map_or_else(|| "-".to_owned(), number),
            fio.map_or_else(|| "-".to_owned(), |fio| number(ours.per_second / fio)),
        ]);
    }
    let direct = if suite.direct { "O_DIRECT" } else { "page cache" };
    let note =
        if suite.note.is_empty() { String::new() } else { format!("note: {}\n", suite.note) };
    format!(
        "kernel {}, {}, {} cores, folder on {}, {} with {direct}, {} MiB, {} ms a measurement\n\n{}{note}",
        machine.kernel,
        machine.cpu,
        machine.cores,
        machine.file_system,
        suite.engine,
        args.size_mib,
        args.millis,
        grid.render()
    )
}

fn document(args: &DeviceArgs, machine: &Machine, suite: &Suite) -> serde_json::Value {
    let rows = suite.rows.iter().map(|row| {
        json!({
            "name": row.name,
            "per_second": row.ours.per_second,
            "mib_per_second": row.ours.mib_per_second,
            "latency_ms": row.ours.latency,
            "fio_per_second": row.fio,
        })
    });
    json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "workload": "device",
        "machine": machine,
        "engine": suite.engine,
        "direct": suite.direct,
        "note": suite.note,
        "fio": suite.fio_version,
        "seed": args.seed,
        "size_mib": args.size_mib,
        "millis": args.millis,
        "rows": rows.collect::<Vec<_>>(),
    })
}
