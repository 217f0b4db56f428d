//! Spans and events of crate `tracing`, by which an operator follows what a database does.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pleach::{Access, Value};
use pleach_io::sim::{SimDisk, SimRuntime};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::common::{commit, uniform};
use crate::crash::{Setup, SimDb, unrecorded};

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
        let setup = Setup { ids: 100, flush_at: 1, ..Setup::draw(1) };
        let disk = SimDisk::new(1, unrecorded());
        let (db, runtime) = setup.open(&disk, 1).expect("created");
        let options = setup.options().create(false).read_only(true);
        let reader =
            SimDb::open_on(disk.clone(), SimRuntime::with_clock(2, disk.clock(), 1), options)
                .expect("opens beside");
        for round in 0..60_u64 {
            let put = |id| Access::write(uniform(id), Some(Value::from(vec![1; 100])));
            commit(&db, (round..round + 20).map(put).collect());
            reader.refresh().expect("goes on");
            runtime.step_some(100);
        }
        db.drain(0).expect("flushed");
        db.close().expect("closed");
    });
    let seen = seen.0.lock().expect("sound").clone();
    let manual = include_str!("../../../docs/operating.md");
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
