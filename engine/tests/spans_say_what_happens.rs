//! Spans and events of crate `tracing`, by which an operator follows what a database does. A test binary of its own: in one with other
//! threads an event that one of them meets first may stay switched off.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pleach::{Access, Db, Geometry, Options, SessionOptions, Value};
use pleach_io::sim::{SimDisk, SimOptions, SimRuntime};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type SimDb = Db;

/// The names of spans and the texts of events.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeSet<String>>>, Arc<AtomicU64>);

impl Visit for &Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().expect("sound").insert(format!("{value:?}"));
        }
    }
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pleach")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.lock().expect("sound").insert(span.metadata().name().to_owned());
        Id::from_u64(1 + self.1.fetch_add(1, Ordering::Relaxed))
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn spans_and_events_are_those_of_the_manual() {
    let seen = Seen::default();
    tracing::subscriber::with_default(seen.clone(), || {
        let disk = SimDisk::new(1, SimOptions::default());
        let options = Options::new("sim").cache_kib(512).threads(1).geometry(Geometry::least());
        let options = options.log_limit_bytes(64 << 10).tune(|tuning| tuning.flush_at = 1);
        let open = |seed, options| {
            let runtime = SimRuntime::with_clock(seed, disk.clock(), 1);
            (SimDb::open_on(disk.clone(), runtime.clone(), options).expect("opens"), runtime)
        };
        let (db, runtime) = open(1, options.clone().create(true));
        let (reader, _) = open(2, options.read_only(true));
        for round in 0..60_u8 {
            let put = |id| Access::write([id; 32], Some(Value::from(vec![1; 100])));
            let session = db.session(SessionOptions::new()).expect("a session");
            let block =
                session.finish((round..round + 20).map(put).collect::<Vec<_>>()).expect("finished");
            block.commit().expect("committed");
            reader.refresh().expect("goes on");
            runtime.step_some(100);
        }
        db.drain(0).expect("flushed");
        db.close().expect("closed");
    });
    let seen = seen.0.lock().expect("sound").clone();
    let manual = include_str!("../../docs/operating.md");
    for name in ["open", "finish", "commit", "checkpoint"] {
        assert!(seen.contains(name), "no span {name}: {seen:?}");
        assert!(manual.contains(&format!("`{name}`")), "the manual lacks the span {name}");
    }
    for text in [
        "opened",
        "a session begins",
        "committed",
        "pages are written",
        "a checkpoint is written",
        "the log was followed",
        "closed",
    ] {
        assert!(seen.contains(text), "no event `{text}`: {seen:?}");
        assert!(manual.contains(text), "the manual lacks the event `{text}`");
    }
}
