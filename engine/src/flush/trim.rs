//! Once a commit: free memory goes back to the system.

use pleach_io::{Device, Runtime};

use crate::state::State;
use crate::state::trims::Trims;

/// When free memory was last given back.
#[derive(Debug, Default)]
pub(super) struct Trim {
    /// The commit that was the newest when it was last looked at.
    seen: u64,
    trims: Trims,
}

impl Trim {
    /// Gives free memory back, if it is time.
    pub(super) fn look<D: Device, R: Runtime>(&mut self, db: &State<D, R>) {
        let published = db.commits.published();
        if std::mem::replace(&mut self.seen, published) != published {
            self.trims.look(&db.runtime, &db.budget, &db.counters);
        }
    }
}
