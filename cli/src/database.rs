//! A database that is opened for writing, under the hasher that it was created with.

use std::path::Path;

use pleach::{Blake3, Db, Hasher, Options, Sha2};

use crate::error::{CliError, Result};

/// Work that is the same under every hasher.
pub(crate) trait Work {
    type Output;
    fn run<H: Hasher>(self, db: &Db<H>) -> pleach::Result<Self::Output>;
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
