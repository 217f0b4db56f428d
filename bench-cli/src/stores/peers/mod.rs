//! Other people's engines, each behind a cargo feature of its name, and each set up as its own
//! documentation advises: what was chosen is in its file, and in [`settings`](super::Store::settings).

#[cfg(feature = "peer-fjall")]
mod fjall;
#[cfg(feature = "peer-mdbx")]
mod mdbx;
#[cfg(feature = "peer-redb")]
mod redb;
#[cfg(feature = "peer-rocksdb")]
mod rocksdb;
#[cfg(feature = "peer-sqlite")]
mod sqlite;

use super::help;

#[cfg(feature = "peer-fjall")]
pub(super) use self::fjall::FjallStore;
#[cfg(feature = "peer-mdbx")]
pub(super) use self::mdbx::MdbxStore;
#[cfg(feature = "peer-redb")]
pub(super) use self::redb::RedbStore;
#[cfg(feature = "peer-rocksdb")]
pub(super) use self::rocksdb::RocksStore;
#[cfg(feature = "peer-sqlite")]
pub(super) use self::sqlite::SqliteStore;
