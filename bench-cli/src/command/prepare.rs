//! What happens before a backend runs: its database is loaded, and the system's page cache emptied
//! if the flags say so.

use crate::backend::Kind;
use crate::child::spawn::{run_job, unexpected};
use crate::child::{Event, Job, LoadResult};
use crate::draws::Stream;
use crate::error::Result;
use crate::progress::Progress;
use crate::setting::Setting;
use crate::{machine, output};

/// Loads a backend's database unless there is one that fits; also returns whether it was loaded now.
pub(crate) fn ensure_loaded(
    setting: &Setting,
    kind: Kind,
    stream: Option<&Stream>,
) -> Result<(LoadResult, bool)> {
    let found = setting.home.find(kind, setting.common.log2, stream, setting.common.reset)?;
    if let Some(parameters) = found
        && let Some(loaded) = parameters.loaded
    {
        let stream = stream.or(parameters.stream.as_ref());
        setting.home.write(kind, setting.common.log2, Some(&loaded), stream)?;
        return Ok((loaded, false));
    }
    setting.home.write(kind, setting.common.log2, None, stream)?;
    let spec = setting.spec(kind, Job::Load);
    let bar = Progress::new(setting.common.quiet, &format!("{} load", kind.name()), "accounts");
    let Event::Loaded(loaded) = run_job(&spec, |event| bar.hear(event))? else {
        return Err(unexpected(&spec));
    };
    setting.home.write(kind, setting.common.log2, Some(&loaded), stream)?;
    Ok((loaded, true))
}

/// Empties the system's page cache; if that fails, prints why.
pub(crate) fn drop_caches() -> bool {
    machine::drop_caches().inspect_err(|why| output::say(&format!("nomt-bench: {why}"))).is_ok()
}
