//! A database that is opened under the hasher that it was created with.

use std::path::Path;

use pleach::{Blake3, Db, Hasher, Options, Sha2, tools};

use crate::error::{CliError, Result};

/// Memory of a command that reads, in MiB.
const READING_MIB: u64 = 128;

/// Work that is the same under every hasher.
pub(crate) trait Work {
    type Output;
    fn run<H: Hasher>(self, db: &Db<H>) -> pleach::Result<Self::Output>;
}

/// Opens the folder's database for reading alone, whether a process writes it or not, and does the work.
pub(crate) fn reading<W: Work>(folder: &Path, work: W) -> Result<W::Output> {
    let hasher = tools::hasher(folder).map_err(CliError::engine(folder))?;
    with(folder, Options::new(folder).cache_mib(READING_MIB).read_only(true), hasher, work)
}

/// Opens the folder's database for writing, and does the work.
pub(crate) fn writing<W: Work>(folder: &Path, work: W) -> Result<W::Output> {
    let hasher = tools::hasher(folder).map_err(CliError::engine(folder))?;
    with(folder, Options::new(folder), hasher, work)
}

/// Opens the folder's database, or makes it where the options say so, under the hasher of this number; does the work, and
/// closes it.
pub(crate) fn with<W: Work>(
    folder: &Path,
    options: Options,
    hasher: u8,
    work: W,
) -> Result<W::Output> {
    match hasher {
        Blake3::ID => run::<Blake3, W>(options, work),
        Sha2::ID => run::<Sha2, W>(options, work),
        found => Err(pleach::Error::WrongHasher { expected: Blake3::ID, found }),
    }
    .map_err(CliError::engine(folder))
}

fn run<H: Hasher, W: Work>(options: Options, work: W) -> pleach::Result<W::Output> {
    let db = Db::<H>::open(options)?;
    let done = work.run(&db)?;
    db.close()?;
    Ok(done)
}
