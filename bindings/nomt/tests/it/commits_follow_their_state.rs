use crate::common::{finish, folder, get, open, put, refused};

#[test]
fn of_two_sessions_on_one_state_one_is_committed() {
    let folder = folder();
    let db = open(folder.path());
    let [one, two] = [b"a", b"b"].map(|value| put(&db, &[], 1, value));
    one.commit(&db).expect("committed");
    refused(two.commit(&db), "make it again on the newest");
    assert_eq!(get(&db, 1), Some(b"a".to_vec()));
}

#[test]
fn an_equal_root_is_enough() {
    let folder = folder();
    let db = open(folder.path());
    let finished = put(&db, &[], 1, b"a");
    finish(&db, &[], vec![]).commit(&db).expect("committed");
    finished.commit(&db).expect("the root is the same");
}

/// Unlike in the crate `nomt` a session is no reason to come back.
#[test]
fn a_commit_that_may_not_wait_takes_place_where_nothing_is_under_way() {
    let folder = folder();
    let db = open(folder.path());
    let session = db.begin_session(nomt::SessionParams::default());
    let finished = put(&db, &[], 1, b"a");
    let stale = put(&db, &[], 1, b"b");
    assert!(finished.try_commit_nonblocking(&db).expect("committed").is_none());
    refused(stale.try_commit_nonblocking(&db), "make it again on the newest");
    let overlay = put(&db, &[], 2, b"c").into_overlay();
    assert!(overlay.try_commit_nonblocking(&db).expect("committed").is_none());
    assert_eq!(session.read([1; 32]).expect("read"), None);
    assert_eq!(get(&db, 2), Some(b"c".to_vec()));
}

/// Several threads, whose commits take turns: each either takes place, or comes back, or is stale.
#[test]
fn a_commit_that_may_not_wait_comes_back_whole() {
    let folder = folder();
    let db = open(folder.path());
    let (committed, came_back) =
        (std::sync::atomic::AtomicU32::new(0), std::sync::atomic::AtomicU32::new(0));
    let count = |counter: &std::sync::atomic::AtomicU32| {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (db, committed, came_back) = (&db, &committed, &came_back);
            scope.spawn(move || {
                for round in 0..30 {
                    let mut finished = put(db, &[], thread, &[round]);
                    loop {
                        let root = finished.root();
                        match finished.try_commit_nonblocking(db) {
                            Ok(None) => break count(committed),
                            Ok(Some(back)) => {
                                assert_eq!(back.root(), root);
                                count(came_back);
                                finished = back;
                                std::thread::yield_now();
                            }
                            Err(_) => finished = put(db, &[], thread, &[round]),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(committed.into_inner(), 120);
    assert_eq!(db.engine().commit_number(), 120);
    for thread in 0..4 {
        assert_eq!(get(&db, thread), Some(vec![29]));
    }
}
