//! A node that joins: `serve` and `sync`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::BufRead as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pleach::{Db, Node, Options};
use pleach_journal::format::creation::UNFINISHED;
use pleach_sync::http::{self, Ended, HttpFetch, Peer, ServeLimits, Status, Url};
use pleach_sync::{Ask, Error, Fetch, Head, Limits, Progress, Refusal, Server, Target, catch_up};
use serde_json::{Value, json};
use signal_hook::consts::TERM_SIGNALS;

use crate::args::{ServeArgs, SyncArgs};
use crate::change::check_new;
use crate::error::{CliError, ErrorKind, Result};
use crate::output;

pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let folder = args.folder.folder.path()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in TERM_SIGNALS {
        signal_hook::flag::register(*signal, Arc::clone(&stop)).map_err(CliError::signals)?;
    }
    let cache = Options::new(folder).cache_mib(args.memory_mib);
    // Older states are served from it, without a look into the runs of the history.
    let options = cache.undo_memory_mib(args.memory_mib / 2);
    let server = Server::open(options, Limits::default()).map_err(CliError::sync(folder))?;
    let listener =
        TcpListener::bind(args.listen).and_then(|bound| Ok((bound.local_addr()?, bound)));
    let (address, listener) = listener.map_err(|error| {
        CliError::new(
            ErrorKind::System,
            format!("{}: {error}: give an address of this machine and a free port", args.listen),
        )
    })?;
    let mut answer = Vec::new();
    let asked = server.answer(&Ask::Head, &mut answer).ok().and_then(|()| Head::decode(&answer));
    let head =
        asked.ok_or_else(|| CliError::new(ErrorKind::System, "the database does not answer"))?;
    let Head { newest, commit, oldest, .. } = head;
    if args.folder.json {
        let line = json!({
            "schema": 1, "address": address.to_string(), "oldest_commit": oldest, "commit": commit,
            "root_over_all": newest.to_string(),
        });
        output::print(&format!("{line}\n"))?;
    } else {
        output::print(&format!(
            "serving commits {oldest} to {commit} at http://{address}, newest root over all {newest}\n"
        ))?;
    }
    let count = |number: u64| usize::try_from(number).expect("at most 65,536");
    let limits = ServeLimits {
        connections: count(args.connections),
        of_address: count(args.of_address),
        bytes_per_second: args.mib_per_second << 20,
        ..ServeLimits::default()
    };
    http::serve(listener, Arc::new(server), limits, &stop)
        .map_err(|error| CliError::sync(folder)(error).after_document())
}

pub(crate) fn sync(args: &SyncArgs) -> Result<()> {
    let mut servers = Servers::new(args)?;
    let root = Node::from(args.root);
    let fetched = fetched_folder(&args.folder)?;
    let (db, mut more) = if is_whole(&args.folder, &fetched)? {
        let db = Db::open(options(args, Options::new(&args.folder)));
        (db.map_err(CliError::engine(&args.folder))?, json!({}))
    } else {
        fetch(args, &fetched, &mut servers)?
    };
    let over_all = || db.roots().over_all(args.hasher);
    // A load that was killed behind its end leaves what it was loaded from.
    if fetched.exists() {
        let left =
            Fetch::open(&fetched, Target::over_all(over_all(), args.hasher), Limits::default());
        left.and_then(Fetch::discard).map_err(CliError::sync(&args.folder))?;
    }
    if over_all() != root {
        servers.catch_up(&db, root)?;
    }
    servers.tell(&db, more.take())?;
    if args.follow {
        for (number, line) in (1..).zip(std::io::stdin().lock().lines()) {
            let line = line.map_err(|error| {
                CliError::new(ErrorKind::System, format!("standard input: {error}"))
            })?;
            let root: Node = line.trim().parse().map_err(|error| {
                CliError::usage(format!("line {number} of standard input: {error}"))
                    .after_document()
            })?;
            if over_all() != root {
                servers.catch_up(&db, root).map_err(CliError::after_document)?;
            }
            servers.tell(&db, json!({}))?;
        }
    }
    db.close().map(drop).map_err(CliError::engine(&args.folder))
}

/// `FOLDER.sync`.
fn fetched_folder(folder: &Path) -> Result<PathBuf> {
    let name = folder.file_name().ok_or_else(|| {
        CliError::usage(format!("{}: give the folder by its name", folder.display()))
    })?;
    let mut name = name.to_owned();
    name.push(".sync");
    Ok(folder.with_file_name(name))
}

/// The folder has a database, or none or half of one yet.
fn is_whole(folder: &Path, fetched: &Path) -> Result<bool> {
    check_new(folder)?;
    let is_empty = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(CliError::file(folder)(error)),
    };
    let has = |name: &str| folder.join(name).exists();
    if has("super") && !has(UNFINISHED) {
        Ok(true)
    } else if is_empty || fetched.join("target").exists() {
        Ok(false)
    } else {
        Err(CliError::usage(format!(
            "{} is not empty, and not of a sync: give a folder that is missing or empty",
            folder.display()
        )))
    }
}

fn options(args: &SyncArgs, options: Options) -> Options {
    options.cache_mib(args.memory_mib / 2).history(args.history)
}

/// Fetches the state, and loads it. Gives what it took, too.
fn fetch(args: &SyncArgs, folder: &Path, servers: &mut Servers<'_>) -> Result<(Db, Value)> {
    let target = Target::over_all(args.root.into(), args.hasher);
    let limits = Limits::default();
    // A damaged part is fetched again.
    for _ in 0..3 {
        let fetch = Fetch::open(folder, target, limits).map_err(CliError::sync(&args.folder))?;
        let held = fetch.progress().bytes;
        let http = HttpFetch::new(fetch, &target, limits, args.from.clone());
        let ended = show_while(&http, || http.run(Duration::from_secs(args.give_up)));
        let status = http.status();
        for (number, what) in &status.progress.lies {
            servers.lies.insert(*number as usize, (*what).to_owned());
        }
        servers.failures = status.failures;
        match ended.map_err(CliError::sync(&args.folder))? {
            Ended::Done => {}
            Ended::Gone => return Err(servers.gone()),
            _ => return Err(servers.silent()),
        }
        let bar = output::waiting("load");
        let loaded = http.into_fetch().load(&args.folder, |new| options(args, new));
        bar.finish_and_clear();
        match loaded {
            Err(Error::Damaged { .. }) => {}
            loaded => {
                let db = loaded.map_err(CliError::sync(&args.folder))?;
                let progress = status.progress;
                let more = json!({"bytes": progress.bytes, "bytes_held_before": held, "pairs": progress.pairs});
                return Ok((db, more));
            }
        }
    }
    Err(CliError::new(
        ErrorKind::Damaged,
        format!(
            "{}: what was written is damaged again and again: mend the device",
            folder.display()
        ),
    ))
}

/// Shows how far a fetch is while `run` works.
fn show_while<T>(http: &HttpFetch, run: impl FnOnce() -> T) -> T {
    let bar = output::share("fetch");
    let (end, ended) = channel::<()>();
    let bar_of = &bar;
    let done = std::thread::scope(|scope| {
        scope.spawn(move || {
            let first = http.status().progress;
            let since = Instant::now();
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                let status = http.status();
                show(bar_of, &status, &first, since.elapsed());
            }
        });
        let done = run();
        drop(end);
        done
    });
    bar.finish_and_clear();
    done
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "printed with few digits"
)]
fn show(bar: &ProgressBar, status: &Status, first: &Progress, passed: Duration) {
    let progress = &status.progress;
    let done = progress.share - first.share;
    let rate = progress.bytes.saturating_sub(first.bytes) as f64 / passed.as_secs_f64();
    let seconds = passed.as_secs_f64() * (1.0 - progress.share) / done;
    let left =
        if done > 0.0 { format!("{} left", rough(seconds)) } else { "nothing yet".to_owned() };
    let silent = status.failures.iter().flatten().count();
    let kept = status.leaves_in.map_or("target kept".to_owned(), |time| {
        format!("target kept for {}", rough(time.as_secs_f64()))
    });
    bar.set_message(format!(
        "fetch, {:.2} GB, {:.1} MB/s, {left}, {} of {} servers answer, {kept}",
        progress.bytes as f64 / 1e9,
        rate / 1e6,
        status.failures.len() - silent,
        status.failures.len(),
    ));
    bar.set_position((progress.share * 1_000.0) as u64);
}

/// A time with one unit.
fn rough(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3_600.0),
    }
}

/// The servers, and what is known of them.
struct Servers<'a> {
    args: &'a SyncArgs,
    peers: Vec<Peer>,
    failures: Vec<Option<Refusal>>,
    lies: BTreeMap<usize, String>,
}

impl<'a> Servers<'a> {
    fn new(args: &'a SyncArgs) -> Result<Self> {
        let peers: core::result::Result<Vec<Peer>, _> =
            args.from.iter().cloned().map(Peer::new).collect();
        let peers = peers.map_err(CliError::sync(&args.folder))?;
        let failures = vec![None; peers.len()];
        Ok(Self { args, peers, failures, lies: BTreeMap::new() })
    }

    /// Brings the database to a root, from the first server that has the changes.
    fn catch_up(&mut self, db: &Db, root: Node) -> Result<()> {
        let begun = Instant::now();
        let from = db.roots().over_all(self.args.hasher);
        let target = Target::over_all(root, self.args.hasher);
        loop {
            let mut asked: Vec<usize> =
                (0..self.peers.len()).filter(|number| !self.lies.contains_key(number)).collect();
            // One that was silent is asked when the others have failed.
            asked.sort_by_key(|number| self.failures[*number].is_some());
            for number in asked {
                let stream =
                    match self.peers[number].changes(&from, &root, Limits::default().patience) {
                        Ok(stream) => stream,
                        Err(refusal) => {
                            self.failures[number] = Some(refusal);
                            continue;
                        }
                    };
                match catch_up(db, &target, stream) {
                    Ok(_) => {
                        self.failures[number] = None;
                        return Ok(());
                    }
                    Err(Error::Lie(what)) => _ = self.lies.insert(number, what.to_string()),
                    Err(Error::TooManyChanges) => self.failures[number] = Some(Refusal::Unknown),
                    Err(Error::Stream(what)) => {
                        self.failures[number] = Some(Refusal::Failed(what.to_string()));
                    }
                    Err(error) => return Err(CliError::sync(&self.args.folder)(error)),
                }
            }
            if self.lies.len() == self.peers.len() || begun.elapsed().as_secs() >= self.args.give_up
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        let lacks = |failure: &Option<Refusal>| {
            matches!(failure, Some(Refusal::Gone { .. } | Refusal::Unknown))
        };
        let is_asked = |number: &usize| !self.lies.contains_key(number);
        if (0..self.peers.len()).filter(is_asked).all(|number| lacks(&self.failures[number]))
            && self.lies.len() < self.peers.len()
        {
            let text = format!(
                "no server has the changes from root {from}, which the database has, to {root}, or they are more than one commit takes: give roots in their order and between, or sync into a new folder{}",
                self.heads()
            );
            return Err(CliError::usage(text));
        }
        Err(self.silent())
    }

    /// Why nobody has the target.
    fn gone(&mut self) -> CliError {
        let root = Node::from(self.args.root);
        CliError::usage(format!(
            "no server has the state of root {root}: give a newer root, or other servers{}",
            self.heads()
        ))
    }

    /// What the servers have, as they say.
    fn heads(&mut self) -> String {
        let mut text = String::new();
        for peer in &mut self.peers {
            let asked = peer.ask(&Ask::Head, Head::BYTES, Duration::from_secs(5));
            let head = asked.map(|answer| Head::decode(&answer));
            let what = match head {
                Ok(Some(Head { newest, commit, oldest, .. })) => {
                    format!("has commits {oldest} to {commit}, the newest of root {newest}")
                }
                Ok(None) => "says what is no head".to_owned(),
                Err(refusal) => refusal.to_string(),
            };
            let _ = write!(text, "; {} {what}", peer.url());
        }
        text
    }

    /// Why nothing right comes.
    fn silent(&self) -> CliError {
        let mut text = String::new();
        for (number, url) in self.args.from.iter().enumerate() {
            let _ = match (self.lies.get(&number), &self.failures[number]) {
                (Some(what), _) => write!(text, "; {url} lied: {what}"),
                (None, Some(refusal)) => write!(text, "; {url}: {refusal}"),
                (None, None) => Ok(()),
            };
        }
        if self.lies.len() == self.args.from.len() {
            let hasher = self.args.hasher.name();
            return CliError::new(
                ErrorKind::Findings,
                format!(
                    "all servers lied, or the hasher of the database is not {hasher} (--hasher){text}"
                ),
            );
        }
        CliError::new(
            ErrorKind::System,
            format!(
                "nothing right came for {} s: what was fetched is kept, call again{text}",
                self.args.give_up
            ),
        )
    }

    /// Prints where the database is.
    fn tell(&self, db: &Db, more: Value) -> Result<()> {
        let (root, commit) =
            (db.roots().over_all(self.args.hasher).to_string(), db.commit_number());
        let url = |number: &usize| self.args.from.get(*number).map(Url::to_string);
        if self.args.json {
            let lie = |(number, what)| json!({"server": url(number), "what": what});
            let lies: Value = self.lies.iter().map(lie).collect();
            let mut line =
                json!({"schema": 1, "root_over_all": root, "commit": commit, "lies": lies});
            if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
                line.extend(more);
            }
            return output::print(&format!("{line}\n"));
        }
        let pairs = more
            .get("pairs")
            .map_or_else(String::new, |pairs| format!(", {pairs} pairs fetched now"));
        let mut text = format!("root over all {root}, commit {commit} here{pairs}\n");
        for (number, what) in &self.lies {
            let _ = writeln!(text, "{} lied: {what}", url(number).unwrap_or_default());
        }
        output::print(&text)
    }
}
