//! Programs on ports of this machine that are no servers, or lie. The tests of `pleach-cli` have this file, too.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};

use pleach_sync::{Ask, Server};

/// A program that sends this for each path, or closes the connection; it ends with the process.
pub(crate) fn other(
    mut answer: impl FnMut(&str) -> Option<Vec<u8>> + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let mut stream = BufReader::new(stream);
            let head: Vec<String> = (&mut stream)
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let path = head.first().and_then(|line| line.split(' ').nth(1));
            if let Some(answer) = path.and_then(&mut answer) {
                // The client may be gone.
                let _ = stream.get_mut().write_all(&answer);
            }
        }
    });
    at
}

pub(crate) fn http(head: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// A server of which each answer to a question for a part has a wrong bit.
pub(crate) fn liar(server: Server) -> SocketAddr {
    other(move |path| {
        let ask: Ask = path.strip_prefix("/v1/")?.parse().ok()?;
        let mut answer = Vec::new();
        server.answer(&ask, &mut answer).ok()?;
        if matches!(ask, Ask::Part(_)) {
            *answer.last_mut()? ^= 1;
        }
        Some(http("200 OK\r\npleach-sync: answer", &answer))
    })
}
