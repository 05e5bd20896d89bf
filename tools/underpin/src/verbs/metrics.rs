//! `underpin metrics`: the machine's counters for Prometheus, printed once or served.

use super::Context;
use crate::{
    cli::Metrics,
    failure::{Failure, Result, exit, reason},
    metrics::{CONTENT_TYPE, text},
    output::print,
    watch::Sample,
};
use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// How long a scraper may take to ask, and how long to take the answer.
const PEER_TIME: Duration = Duration::from_secs(5);
/// The most bytes of a request's head.
const HEAD_MAX: usize = 8 * 1024;

/// Prints the metrics, or serves them until it is ended.
pub fn metrics(context: &Context, options: &Metrics) -> Result<()> {
    match options.listen {
        None => print(&now(context)?),
        Some(address) => serve(context, address),
    }
}

/// The metrics of this moment. Each time anew: the machine may have been started again.
fn now(context: &Context) -> Result<String> {
    let sample = Sample::take(&mut context.connect()?, |_| true)?;
    Ok(text(&sample, context.run.host()))
}

fn serve(context: &Context, address: SocketAddr) -> Result<()> {
    let failed = |error: io::Error| {
        let message = format!("cannot listen at {address}: {}", reason(&error));
        Failure::new(exit::FAILED, message).help("is another server there? try another port")
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    context
        .progress
        .say(&format!("serving /metrics at {address}; end with Ctrl-C"));
    loop {
        // One after the other: there are few scrapers, and the time of each is bounded.
        match listener.accept() {
            // What goes wrong with one is its own affair.
            Ok((peer, _)) => drop(answer(context, peer)),
            // As when there are too many open files; it may pass.
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(context: &Context, mut peer: TcpStream) -> io::Result<()> {
    let head = read_head(&mut peer, Instant::now() + PEER_TIME)?;
    let (status, kind, body) = match asked(&head) {
        Asked::Metrics { .. } => match now(context) {
            Ok(text) => ("200 OK", CONTENT_TYPE, text),
            Err(failure) => plain("503 Service Unavailable", failure.message()),
        },
        Asked::Else => plain("404 Not Found", "there is /metrics and nothing else"),
        Asked::Change => plain("405 Method Not Allowed", "nothing can be changed here"),
        Asked::Nonsense => plain("400 Bad Request", "this is not a request"),
    };
    let mut reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Allow: GET, HEAD\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if !matches!(asked(&head), Asked::Metrics { head: true }) {
        reply.push_str(&body);
    }
    write_all(&mut peer, reply.as_bytes(), Instant::now() + PEER_TIME)
}

fn plain(status: &'static str, sentence: &str) -> (&'static str, &'static str, String) {
    (status, "text/plain; charset=utf-8", format!("{sentence}\n"))
}

/// What a request is after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The metrics; with `head`, only what would be said before them.
    Metrics { head: bool },
    /// What is not there.
    Else,
    /// Another method than GET and HEAD.
    Change,
    /// It is no request of HTTP/1.
    Nonsense,
}

/// Decodes a request's first line.
fn asked(head: &[u8]) -> Asked {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = str::from_utf8(line).unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, "HTTP/1.1" | "HTTP/1.0"] = words[..] else {
        return Asked::Nonsense;
    };
    let path = target.split('?').next();
    match (method, path) {
        ("GET", Some("/metrics")) => Asked::Metrics { head: false },
        ("HEAD", Some("/metrics")) => Asked::Metrics { head: true },
        ("GET" | "HEAD", _) => Asked::Else,
        _ => Asked::Change,
    }
}

/// Reads until the empty line that ends a request's head.
fn read_head(peer: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        peer.set_read_timeout(Some(left(deadline)?))?;
        match peer.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(buffer.get(..n).unwrap_or_default()),
        }
    }
    Ok(head)
}

fn write_all(peer: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        peer.set_write_timeout(Some(left(deadline)?))?;
        match peer.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => bytes = bytes.get(n..).unwrap_or_default(),
        }
    }
    Ok(())
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    let some = Some(left).filter(|left| !left.is_zero());
    some.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        for (line, after) in [
            ("GET /metrics HTTP/1.1", Asked::Metrics { head: false }),
            ("GET /metrics?x=1 HTTP/1.0", Asked::Metrics { head: false }),
            ("HEAD /metrics HTTP/1.1", Asked::Metrics { head: true }),
            ("GET / HTTP/1.1", Asked::Else),
            ("GET /metrics/ HTTP/1.1", Asked::Else),
            ("POST /metrics HTTP/1.1", Asked::Change),
            ("GET  /metrics HTTP/1.1", Asked::Nonsense),
            ("GET /metrics HTTP/2", Asked::Nonsense),
            ("GET /metrics", Asked::Nonsense),
            ("", Asked::Nonsense),
        ] {
            assert_eq!(
                asked(format!("{line}\r\nHost: x\r\n\r\n").as_bytes()),
                after,
                "{line}"
            );
        }
        assert_eq!(asked(b"GET /\xff HTTP/1.1\r\n\r\n"), Asked::Nonsense);
    }
}
