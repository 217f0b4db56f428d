//! [`Image`]: the files of a disk at rest.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::{Content, PageBytes};
use super::state::{DiskState, FileId, FileState};

/// Files and their bytes, all at rest. Clones share pages.
#[derive(Clone, Default)]
pub struct Image {
    files: BTreeMap<Arc<str>, FileImage>,
}

/// One file at rest, with what each page held before its last write.
#[derive(Clone)]
pub(super) struct FileImage {
    pub(super) content: Content,
    pub(super) older: Arc<BTreeMap<u64, Arc<PageBytes>>>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.files.iter().map(|(name, rest)| (name, &rest.content));
        f.debug_map().entries(files).finish()
    }
}

impl Image {
    /// The image that holds `files`.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, Content)>) -> Self {
        let rest = |content| FileImage { content, older: Arc::default() };
        let files = files.into_iter().map(|(name, content)| (name.into(), rest(content)));
        Self { files: files.collect() }
    }

    /// Names of the files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(|name| &**name)
    }

    /// A file's bytes.
    pub fn file(&self, name: &str) -> Option<&Content> {
        self.files.get(name).map(|rest| &rest.content)
    }

    pub(super) fn from_rest(files: impl IntoIterator<Item = (Arc<str>, FileImage)>) -> Self {
        Self { files: files.into_iter().collect() }
    }

    pub(super) fn visible(state: &DiskState) -> Self {
        let rest = |id: FileId| {
            let file = &state.files[id.0];
            FileImage { content: file.visible.clone(), older: Arc::clone(&file.older) }
        };
        Self { files: state.names.iter().map(|(name, id)| (Arc::clone(name), rest(*id))).collect() }
    }

    pub(super) fn state(&self) -> DiskState {
        let mut state = DiskState::default();
        for (index, (name, rest)) in self.files.iter().enumerate() {
            let file = FileState::at_rest(rest.content.clone(), Arc::clone(&rest.older));
            state.files.push(file);
            state.names.insert(Arc::clone(name), FileId(index));
        }
        state.durable_names = state.names.clone();
        state
    }
}
