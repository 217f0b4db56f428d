//! A bulk load of pairs that may be errors ends at the first one and changes nothing.

use pleach::load::LoadOptions;
use pleach::{Db, Error, Key, Options, Value};

use crate::common::uniform;

/// What reads the pairs may fail, and has errors of its own.
#[derive(Debug)]
enum Reading {
    Cut(u64),
    Db(Error),
}

impl From<Error> for Reading {
    fn from(error: Error) -> Self {
        Self::Db(error)
    }
}

fn pairs(end: u64) -> impl Iterator<Item = Result<(Key, Value), Reading>> {
    let pair = move |id: u64| {
        if id == end {
            Err(Reading::Cut(id))
        } else {
            Ok((uniform(id), Value::from(&id.to_be_bytes())))
        }
    };
    (0..).map(pair)
}

#[test]
fn the_first_error_comes_back_and_the_next_load_succeeds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let db = Db::open(Options::new(folder.path()).create(true).small()).expect("created");
    let root = db.root();
    for end in [0, 1, 63, 64, 65, 5000] {
        let failed = db.try_bulk_load(pairs(end), &LoadOptions::new());
        assert!(matches!(failed, Err(Reading::Cut(at)) if at == end), "{failed:?}");
        assert_eq!((db.root(), db.commit_number()), (root, 0));
    }
    let loaded = db.try_bulk_load(pairs(5000).take(5000), &LoadOptions::new()).expect("loaded");
    assert_eq!((loaded.accounts, db.commit_number()), (5000, 1));
    let again = db.try_bulk_load(pairs(5), &LoadOptions::new());
    assert!(matches!(again, Err(Reading::Db(Error::NotEmpty(_)))), "{again:?}");
    assert_eq!(db.get(&uniform(4999)).expect("read").as_deref(), Some(&4999_u64.to_be_bytes()[..]));
}
