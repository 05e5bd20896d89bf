//! What TCP costs between two programs: a stream one way, and a request with its response.
//!
//! One serves, the other asks. They are two processes of one machine, which talk over its loopback
//! device, or the first programs of two machines.

use crate::{
    Outcome,
    clock::{report, since_start},
    process,
};
use rustix::fs::sendfile;
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    process::Command,
    thread::sleep,
    time::Duration,
};

/// The argument that asks for it; then come the role, this machine's address, and the server's.
pub const NETWORK: &str = "network";
const SERVE: &str = "serve";
const BOTH: &str = "both";

const LOOPBACK: &str = "127.0.0.1";
const PORT: u16 = 5000;
/// Bytes that one system call moves.
const PIECE: usize = 64 << 10;
/// MiB that are sent before the measurement, and in it.
const WARM: usize = 16;
const MIB: usize = 64;
/// Bytes of a request, and of its response.
const REQUEST: usize = 64;
/// Round trips before the measurement, and in it.
const ROUNDS_WARM: usize = 100;
const ROUNDS: usize = 1000;
/// A file of a MiB for `sendfile`.
const FILE: &str = "/file";

/// What the first byte of a connection asks for.
const STREAM: u8 = b's';
const REQUESTS: u8 = b'r';

/// Plays the role that the arguments name.
///
/// # Errors
/// A system call fails.
pub fn play(role: &str, own: &str, server: &str) -> Outcome {
    match role {
        SERVE => serve(own),
        BOTH => {
            let mut other = Command::new(process::SELF)
                .args([NETWORK, SERVE, own])
                .spawn()?;
            let asked = ask(own);
            other.kill()?;
            asked
        }
        _ => ask(server),
    }
}

/// Brings up the devices that this machine has: loopback, and a network card with the address.
///
/// # Errors
/// The tool is not there or refuses.
pub fn bring_up(own: &str) -> Outcome {
    ip(&["link", "set", "lo", "up"])?;
    if own != LOOPBACK {
        ip(&["addr", "add", &format!("{own}/24"), "dev", "eth0"])?;
        ip(&["link", "set", "eth0", "up"])?;
    }
    Ok(())
}

fn ip(words: &[&str]) -> Outcome {
    let status = Command::new("/busybox").arg("ip").args(words).status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {status}", words.join(" ")).into())
}

/// Serves one connection after the other, for ever.
fn serve(own: &str) -> Outcome {
    let listener = TcpListener::bind((own, PORT))?;
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        match kind {
            [STREAM] => swallow(&mut stream)?,
            _ => respond(&mut stream)?,
        }
    }
}

/// Reads all there is, and says how much it was.
fn swallow(stream: &mut TcpStream) -> Outcome {
    let mut buffer = vec![0; PIECE];
    let mut bytes = 0_u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            count => bytes += count as u64,
        }
    }
    stream.write_all(&bytes.to_le_bytes())?;
    Ok(())
}

/// Answers requests until there are no more.
fn respond(stream: &mut TcpStream) -> Outcome {
    stream.set_nodelay(true)?;
    let mut request = [0; REQUEST];
    loop {
        match stream.read_exact(&mut request) {
            Ok(()) => stream.write_all(&request)?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn ask(server: &str) -> Outcome {
    let buffer = vec![1; PIECE];
    fs::write(FILE, vec![1; 1 << 20])?;
    let file = File::open(FILE)?;
    let write =
        |stream: &mut TcpStream| (0..(1 << 20) / PIECE).try_for_each(|_| stream.write_all(&buffer));
    let send = |stream: &mut TcpStream| {
        let mut offset = 0;
        while offset < 1 << 20 {
            let left = (1 << 20) - offset as usize;
            sendfile(&*stream, &file, Some(&mut offset), left)?;
        }
        Ok(())
    };
    stream("stream", server, write)?;
    stream("file", server, send)?;
    requests(server)
}

/// Measures a stream; `send` sends a MiB of it.
fn stream(key: &str, server: &str, send: impl Fn(&mut TcpStream) -> io::Result<()>) -> Outcome {
    let mut ns = 0.0;
    for mib in [WARM, MIB] {
        let mut stream = connect(server)?;
        stream.write_all(&[STREAM])?;
        let start = since_start();
        (0..mib).try_for_each(|_| send(&mut stream))?;
        stream.shutdown(Shutdown::Write)?;
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        ns = (since_start() - start) / mib as f64;
        if u64::from_le_bytes(bytes) != (mib as u64) << 20 {
            return Err(format!("{mib} MiB were sent, and {bytes:?} came").into());
        }
    }
    report(key, ns);
    Ok(())
}

fn requests(server: &str) -> Outcome {
    let mut stream = connect(server)?;
    stream.set_nodelay(true)?;
    stream.write_all(&[REQUESTS])?;
    let mut round = || {
        let mut response = [0; REQUEST];
        stream.write_all(&response)?;
        stream.read_exact(&mut response)
    };
    (0..ROUNDS_WARM).try_for_each(|_| round())?;
    let start = since_start();
    (0..ROUNDS).try_for_each(|_| round())?;
    report("request", (since_start() - start) / ROUNDS as f64);
    Ok(())
}

/// A connection to the server, which may not be there yet.
fn connect(server: &str) -> io::Result<TcpStream> {
    for _ in 0..100 {
        if let Ok(stream) = TcpStream::connect((server, PORT)) {
            return Ok(stream);
        }
        sleep(Duration::from_millis(100));
    }
    TcpStream::connect((server, PORT))
}
