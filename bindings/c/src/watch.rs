//! What a program watches and keeps: metrics, messages, backups.

use std::ffi::{CString, c_char, c_void};
use std::fmt::Debug;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use pleach::Metrics;
use pleach_ops::BackupOptions;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::bytes::PleachBytes;
use crate::db::PleachDb;
use crate::error::{Failed, PleachError, guard};
use crate::handle::{Out, ask, given, path};
use crate::histograms;

/// Level of a message: something failed, or will.
pub const PLEACH_LOG_ERROR: u32 = 1;
/// Level of a message: an operator should look at it.
pub const PLEACH_LOG_WARNING: u32 = 2;
/// Level of a message: a database was opened or closed.
pub const PLEACH_LOG_INFO: u32 = 3;

/// A function that gets messages of the library: its context, the level, and a text in UTF-8 that lives for the call.
/// Any thread may call it, several at the same time. It calls no function of this library, and throws nothing.
pub type PleachLogger =
    Option<unsafe extern "C" fn(context: *mut c_void, level: u32, text: *const c_char)>;

/// Who gets messages, of which levels.
struct Listener {
    level: u32,
    log: unsafe extern "C" fn(*mut c_void, u32, *const c_char),
    context: *mut c_void,
}

// SAFETY: the caller's duty: the function may be called with the context by any thread.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

static LISTENER: RwLock<Option<Listener>> = RwLock::new(None);

/// The subscriber of the process: it gives events to the listener, and knows no spans.
struct Messages;

impl Subscriber for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let level = match *event.metadata().level() {
            Level::ERROR => PLEACH_LOG_ERROR,
            Level::WARN => PLEACH_LOG_WARNING,
            _ => PLEACH_LOG_INFO,
        };
        let listener = LISTENER.read().unwrap_or_else(PoisonError::into_inner);
        let Some(listener) = listener.as_ref().filter(|listener| level <= listener.level) else {
            return;
        };
        let mut text = MessageText::default();
        event.record(&mut text);
        // A NUL would end the text for C.
        let text = CString::new((text.message + &text.fields).replace('\0', " "));
        // SAFETY: the caller's duty: the function may be called by any thread until another is set.
        unsafe { (listener.log)(listener.context, level, text.unwrap_or_default().as_ptr()) };
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A message, and its fields as `name=value`.
#[derive(Default)]
struct MessageText {
    message: String,
    fields: String,
}

impl Visit for MessageText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.extend([" ", name, "=", &format!("{value:?}")]),
        }
    }
}

/// Gives messages of the library to a function: of all databases of the process, from now on, of this level and more
/// serious ones (`PLEACH_LOG_ERROR` is the most serious). A second call replaces the function, NULL ends it; when either
/// returns, no thread is inside of the function before. What an open warns of is in `pleach_notes`, too. Errors: 902,
/// another part of the process has set a `tracing` subscriber.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_log(
    level: u32,
    logger: PleachLogger,
    context: *mut c_void,
) -> Failed {
    guard(|| {
        let listener = logger.map(|log| Listener { level, log, context });
        let mut current = LISTENER.write().unwrap_or_else(PoisonError::into_inner);
        let is_ours = tracing::dispatcher::get_default(tracing::Dispatch::is::<Messages>);
        if !is_ours && listener.is_some() {
            tracing::subscriber::set_global_default(Messages).map_err(|_| {
                PleachError::argument("another part of the process has set a `tracing` subscriber")
            })?;
        }
        *current = listener;
        Ok(())
    })
}

/// All metrics of a database in the text format of Prometheus: docs/metrics.md describes each. The label `database` is the
/// folder, as it was given. Counters count from the open on, histograms from the first open of the folder in this process.
#[unsafe(no_mangle)]
pub extern "C" fn pleach_metrics(db: Option<&PleachDb>, text: Out<PleachBytes>) -> Failed {
    ask(given(db, "db"), given(text, "text"), |db| {
        let figures = db.metrics();
        let label = format!("{{database=\"{}\"}} ", histograms::label_value(figures.folder()));
        let mut text = String::new();
        for metric in Metrics::ALL {
            let kind = if metric.name.ends_with("_total") { "counter" } else { "gauge" };
            let (name, help, value) = (metric.name, metric.help(), metric.value(&figures));
            let help = help.replace('\\', r"\\");
            text.extend(["# HELP ", name, " ", &help, "\n# TYPE ", name, " ", kind, "\n"]);
            text.extend([name, &label, &value.to_string(), "\n"]);
        }
        histograms::write(&mut text, figures.folder());
        Ok(PleachBytes::of(text))
    })
}

/// Copies the database to a folder, which is missing or empty, while sessions and commits go on, and gives the number of
/// the newest commit in the copy. With `verify`, each page of the copy is read again and hashed up to the roots. Errors:
/// 105, no room for the copy; 504, a load or another backup runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pleach_backup(
    db: Option<&PleachDb>,
    folder: *const c_char,
    verify: bool,
    number: Out<u64>,
) -> Failed {
    guard(|| {
        let number = given(number, "number")?;
        // SAFETY: the caller's duty: NULL, or text that ends with a NUL.
        let folder: &Path = unsafe { path(folder, "folder") }?;
        let options = BackupOptions::new().verify(verify);
        // A clone, so that a backup does not keep the handle from others.
        let db = given(db, "db")?.read(|db| Ok(db.clone()))?;
        number.write(pleach_ops::backup(&db, folder, &options)?.commit);
        Ok(())
    })
}
