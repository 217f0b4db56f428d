//! Does it fit? Compares the memory and the disk space that a run needs with what is free.

use crate::args::Common;
use crate::backend::sizing::{self, Demand};
use crate::backend::{EngineOptions, Kind};
use crate::error::{BenchError, Result};
use crate::machine;
use crate::text::gib;
use crate::workload::replay::Replay;

/// Bytes of all databases together.
pub(super) fn disk(kinds: &[Kind], options: &EngineOptions, demand: &Demand) -> u64 {
    kinds.iter().map(|&kind| sizing::need(kind, options, demand).disk).sum()
}

/// Refuses what cannot fit, and says how much it needs; `together`: all backends are open at once.
pub(super) fn check(
    common: &Common,
    kinds: &[Kind],
    options: &EngineOptions,
    demand: &Demand,
    together: bool,
) -> Result<()> {
    let needs = kinds.iter().map(|&kind| sizing::need(kind, options, demand));
    let checking = Replay::memory(options.expected_accounts);
    let each = needs.map(|need| need.memory);
    let running = if together { each.sum() } else { each.max().unwrap_or(0) };
    let memory = running.max(checking);
    let disk = disk(kinds, options, demand);
    if let Some(free) = machine::free_memory()
        && memory > free
    {
        return Err(BenchError::Usage(format!(
            "this needs about {} of memory and {} are free: lower --cache-mib or --log2",
            gib(memory),
            gib(free)
        )));
    }
    let temporary = std::env::temp_dir();
    let folder = common.dir.as_deref().unwrap_or(&temporary);
    // What is there already needs no more room.
    let present: u64 = common.dir.as_deref().map_or(0, |dir| {
        kinds.iter().map(|kind| machine::folder_bytes(&dir.join(kind.name()))).sum()
    });
    if let Some(free) = machine::free_disk(folder)
        && disk.saturating_sub(present) > free
    {
        return Err(BenchError::Usage(format!(
            "this needs about {} in {} and {} are free: name a larger device with --dir or lower --log2",
            gib(disk),
            folder.display(),
            gib(free)
        )));
    }
    Ok(())
}
