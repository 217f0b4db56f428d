//! An archive: its place, and access to its objects.

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, parse_url_opts};
use url::Url;

use crate::error::{ArchiveError, Result};
use crate::listing::Listing;
use crate::names::owner_name;
use crate::tasks::{StartedTask, Tasks};

/// Environment variables with these prefixes are given to the object store's client.
const VARIABLES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// An archive. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Archive(Arc<ArchiveInner>);

#[derive(Debug)]
struct ArchiveInner {
    store: Arc<dyn ObjectStore>,
    /// The archive's place in the store.
    prefix: Path,
    /// The archive's place, as it was given.
    place: String,
    /// The folder, where the archive is one: the store would make it again.
    folder: Option<PathBuf>,
    seen: Mutex<Seen>,
    tasks: Tasks,
}

/// What this process has found in the archive, or has put there: a disk may be unmounted, a bucket be emptied.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    database: Option<u64>,
    /// The newest commit that a backup has left there, or that a follower is at.
    commit: u64,
}

/// Makes a folder and the missing ones above it, and their names durable: objects are durable once they are named.
fn make_folder(folder: &FilePath) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(FilePath::new("."));
    make_folder(above)?;
    match std::fs::create_dir(folder) {
        // Another process was faster.
        Err(_) if folder.is_dir() => {}
        made => made?,
    }
    std::fs::File::open(above)?.sync_all()
}

impl Archive {
    /// Opens an archive: a folder that exists, by any path, or a URL (`file://`, and with this crate's features
    /// `s3://`, `gs://`, `az://`, `https://`), whose client takes its options from the variables of the environment.
    /// Nothing is read yet.
    ///
    /// # Errors
    /// [`ArchiveError::NoFolder`]; [`ArchiveError::IsADatabase`]; [`ArchiveError::Place`] for a URL that cannot be
    /// used, or whose feature is not compiled in.
    pub fn open(place: impl AsRef<OsStr>) -> Result<Self> {
        let (path, place) = (place.as_ref(), &*place.as_ref().to_string_lossy());
        let Some(url) = url_of(path)? else { return Self::folder(path.as_ref(), place) };
        if url.scheme() == "file" {
            let folder = url.to_file_path().map_err(|()| bad_place(place, "it is no path"))?;
            return Self::folder(&folder, place);
        }
        if let Some(feature) = missing_feature(url.scheme()) {
            let why = format!("it needs a build with `--features {feature}`");
            return Err(bad_place(place, why));
        }
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            VARIABLES.iter().any(|begin| name.starts_with(begin)).then_some((name, value))
        });
        let (store, prefix) =
            parse_url_opts(&url, variables).map_err(|error| bad_place(place, error))?;
        Self::at(store.into(), prefix, place, None)
    }

    /// Like [`Self::open`], and makes a missing folder, for writing.
    ///
    /// # Errors
    /// [`ArchiveError::File`] when the folder cannot be made, and those of [`Self::open`].
    pub fn create(place: impl AsRef<OsStr>) -> Result<Self> {
        if let Some(folder) = Self::folder_of(&place)? {
            let path = place.as_ref().to_string_lossy().into_owned();
            let failed = |cause| ArchiveError::File { path, cause };
            make_folder(&folder).map_err(failed)?;
        }
        Self::open(place)
    }

    /// The folder that a place is; `None` for an object store.
    ///
    /// # Errors
    /// [`ArchiveError::Place`] for a URL that cannot be used.
    pub fn folder_of(place: impl AsRef<OsStr>) -> Result<Option<PathBuf>> {
        Ok(match url_of(place.as_ref())? {
            None => Some(place.as_ref().into()),
            Some(url) if url.scheme() == "file" => url.to_file_path().ok(),
            Some(_) => None,
        })
    }

    /// An archive in a store that the caller has made, below a prefix (empty for the whole of it). The store must give
    /// an object its name when all of it is there, and list it from then on.
    ///
    /// # Errors
    /// [`ArchiveError::File`] when no thread can be started.
    pub fn with_store(store: Arc<dyn ObjectStore>, prefix: &str) -> Result<Self> {
        let place = store.to_string();
        Self::at(store, Path::from(prefix), &place, None)
    }

    fn folder(folder: &FilePath, place: &str) -> Result<Self> {
        if !folder.is_dir() {
            return Err(ArchiveError::NoFolder(place.to_owned()));
        }
        if folder.join("super").is_file() {
            return Err(ArchiveError::IsADatabase(place.to_owned()));
        }
        // A named object is whole and on the disk.
        let store = LocalFileSystem::new_with_prefix(folder)
            .map_err(|error| bad_place(place, error))?
            .with_fsync(true);
        Self::at(Arc::new(store), Path::default(), place, Some(folder.to_owned()))
    }

    fn at(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        place: &str,
        folder: Option<PathBuf>,
    ) -> Result<Self> {
        let failed = |cause| ArchiveError::File { path: place.to_owned(), cause };
        let (tasks, place) = (Tasks::new().map_err(failed)?, place.to_owned());
        let seen = Mutex::default();
        Ok(Self(Arc::new(ArchiveInner { store, prefix, place, folder, seen, tasks })))
    }

    /// The place, as it was given.
    pub fn place(&self) -> &str {
        &self.0.place
    }

    /// The contents of the archive. What this value or a clone of it has found there before must be there still.
    ///
    /// # Errors
    /// [`ArchiveError::Lost`], [`ArchiveError::Older`], [`ArchiveError::NoFolder`]; [`ArchiveError::TwoDatabases`];
    /// [`ArchiveError::Store`].
    pub fn list(&self) -> Result<Listing> {
        let (store, prefix) = (Arc::clone(&self.0.store), self.0.prefix.clone());
        let list = async move { store.list_with_delimiter(Some(&prefix)).await };
        let found = self.run(self.place(), list)?;
        let named = |object: object_store::ObjectMeta| {
            Some((object.location.filename()?.to_owned(), object.size))
        };
        let listing = Listing::new(found.objects.into_iter().filter_map(named))?;
        let Seen { database, commit } = *self.seen();
        self.compare(&listing, database, commit)?;
        // One that was listed and is gone by now is lost to the next listing.
        if listing.database().is_none() {
            self.require_folder()?;
        }
        self.saw(listing.database(), 0);
        Ok(listing)
    }

    /// Refuses a listing that lacks a database, or that ends before a commit, which both were there.
    pub(crate) fn compare(
        &self,
        listing: &Listing,
        database: Option<u64>,
        commit: u64,
    ) -> Result<()> {
        let (place, found) = (|| self.place().to_owned(), listing.database());
        if let Some(database) = database.filter(|database| found != Some(*database)) {
            return Err(ArchiveError::Lost { place: place(), database, found });
        }
        let newest = listing.last();
        if newest.unwrap_or(0) < commit {
            return Err(ArchiveError::Older { place: place(), newest, commit });
        }
        Ok(())
    }

    /// Notes that the archive names this database, and has this commit or a later one.
    pub(crate) fn saw(&self, database: Option<u64>, commit: u64) {
        let mut seen = self.seen();
        *seen = Seen { database: database.or(seen.database), commit: seen.commit.max(commit) };
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn require_folder(&self) -> Result<()> {
        match self.0.folder.as_ref().filter(|folder| !folder.is_dir()) {
            Some(_) => Err(ArchiveError::NoFolder(self.place().to_owned())),
            None => Ok(()),
        }
    }

    /// Names the archive's database, which it has none of yet.
    pub(crate) fn put_owner(&self, database: u64) -> Result<()> {
        self.require_folder()?;
        let (store, path) = self.object(&owner_name(database));
        let text = format!("This is an archive of the Pleach database {database:016x}.\n");
        self.run(&owner_name(database), async move { store.put(&path, text.into()).await })?;
        self.saw(Some(database), 0);
        Ok(())
    }

    /// Refuses to write where the archive's database is not named any more: a backup lists once and may write much later.
    pub(crate) fn require_owner(&self, database: u64) -> Result<()> {
        match self.read(&owner_name(database), 0..1).wait()? {
            Err(object_store::Error::NotFound { .. }) => {
                let place = self.place().to_owned();
                Err(ArchiveError::Lost { place, database, found: None })
            }
            read => read.map(drop).map_err(failed(&owner_name(database))),
        }
    }

    /// Removes an object. What is gone counts as removed: stores of objects say so, and a folder does not.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let (store, path) = self.object(name);
        match self.run(name, async move { store.delete(&path).await }) {
            Err(error) if error.is_gone() => Ok(()),
            removed => removed,
        }
    }

    /// Begins to write an object.
    pub(crate) fn begin(&self, name: &str) -> Result<Box<dyn MultipartUpload>> {
        let (store, path) = self.object(name);
        self.run(name, async move { store.put_multipart(&path).await })
    }

    /// Starts to read bytes of an object.
    pub(crate) fn read(
        &self,
        name: &str,
        bytes: std::ops::Range<u64>,
    ) -> StartedTask<object_store::Result<Vec<u8>>> {
        let (store, path) = self.object(name);
        self.start(async move { store.get_range(&path, bytes).await.map(Vec::from) })
    }

    /// Starts a task of the store.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> StartedTask<T> {
        self.0.tasks.start(task)
    }

    fn run<T: Send + 'static>(
        &self,
        object: &str,
        task: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.start(task).wait()?.map_err(failed(object))
    }

    fn object(&self, name: &str) -> (Arc<dyn ObjectStore>, Path) {
        (Arc::clone(&self.0.store), self.0.prefix.clone().join(name))
    }
}

/// The error of a store, on an object.
pub(crate) fn failed(object: &str) -> impl Fn(object_store::Error) -> ArchiveError {
    move |cause| ArchiveError::Store { object: object.to_owned(), cause }
}

/// The URL that a place is; `None` for a path.
fn url_of(place: &OsStr) -> Result<Option<Url>> {
    // A place that is no text is a path.
    let Some(place) = place.to_str().filter(|place| place.contains("://")) else {
        return Ok(None);
    };
    Url::parse(place).map(Some).map_err(|error| bad_place(place, error))
}

/// The feature of this crate and of the command `pleach` that a URL needs and that is not compiled in.
fn missing_feature(scheme: &str) -> Option<&'static str> {
    let (feature, is_there) = match scheme {
        "s3" | "s3a" => ("aws", cfg!(feature = "aws")),
        "gs" => ("gcp", cfg!(feature = "gcp")),
        "az" | "adl" | "azure" | "abfs" | "abfss" => ("azure", cfg!(feature = "azure")),
        "http" | "https" => ("http", cfg!(feature = "http")),
        _ => return None,
    };
    (!is_there).then_some(feature)
}

fn bad_place(place: &str, why: impl Display) -> ArchiveError {
    ArchiveError::Place { place: place.to_owned(), why: format!("{why}") }
}
