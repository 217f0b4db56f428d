//! Serves the metrics of a database to Prometheus while it works: `http://127.0.0.1:9464/metrics`.
//!
//! ```sh
//! cargo run --release -p pleach --features metrics --example prometheus            # until it is ended
//! cargo run --release -p pleach --features metrics --example prometheus -- --once  # prints them once
//! ```

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use pleach::{Access, Db, Hasher, Options, SessionOptions, Value, observe};

/// A block of 1,000 changes.
fn block(db: &Db, number: u64) -> Result<(), Box<dyn std::error::Error>> {
    let put = |id: u64| {
        let key = Hasher::BLAKE3.hash(&(id * 7919 % 100_000).to_be_bytes());
        Access::read_write(key, Some(Value::from(number.to_be_bytes().as_slice())))
    };
    let accesses = (number * 1000..number * 1000 + 1000).map(put);
    db.session(SessionOptions::new())?.finish(accesses)?.commit()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without bounds it would make summaries, which no panel of the dashboard shows.
    let pleach = Matcher::Prefix("pleach_".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(pleach, &observe::BUCKETS)?;
    let handle = builder.install_recorder()?;
    observe::describe();
    let folder = tempfile::tempdir()?;
    let db = Db::open(Options::new(folder.path()).create(true).small().cache_mib(64))?;
    if std::env::args().any(|argument| argument == "--once") {
        (0..20).try_for_each(|number| block(&db, number))?;
        observe::record(&db.metrics());
        print!("{}", handle.render());
        return Ok(db.close().map(drop)?);
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (db, ended) = (&db, &ended);
        scope.spawn(move || {
            let mut number = 0;
            while !ended.load(Ordering::Relaxed) {
                if let Err(error) = block(db, number) {
                    eprintln!("the node has stopped: {error}");
                    return;
                }
                number += 1;
            }
        });
        let listener = TcpListener::bind("127.0.0.1:9464")?;
        println!("http://127.0.0.1:9464/metrics");
        for stream in listener.incoming() {
            let mut stream = stream?;
            // Whatever is asked for.
            let _ = stream.read(&mut [0; 1024])?;
            handle.run_upkeep();
            observe::record(&db.metrics());
            let body = handle.render();
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
            write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len())?;
        }
        ended.store(true, Ordering::Relaxed);
        Ok(())
    })
}
