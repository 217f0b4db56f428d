//! Handles may be sent to other threads, and shared by them: a change that takes this away does not compile.

use pleach::{
    Block, CommitError, Db, Error, FinishError, Iter, Namespace, Options, Overlay, Session,
    SessionOptions, Value,
};

fn is_send<T: Send>() {}
fn is_send_and_sync<T: Send + Sync>() {}

#[test]
fn all_of_them() {
    is_send_and_sync::<Db>();
    is_send_and_sync::<Session>();
    is_send_and_sync::<Namespace>();
    is_send_and_sync::<Block>();
    is_send_and_sync::<Overlay>();
    is_send_and_sync::<Value>();
    is_send_and_sync::<Error>();
    is_send_and_sync::<CommitError>();
    is_send_and_sync::<FinishError>();
    is_send_and_sync::<Options>();
    is_send_and_sync::<SessionOptions>();
    is_send::<Iter>();
}
