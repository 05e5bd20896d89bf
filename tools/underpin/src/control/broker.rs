//! Owns the stream to the hypervisor and shares it among commands.
//!
//! Requests get tags of the broker's own on the way down, and their answers the askers' tags on
//! the way up. Consoles go to log files first, then to those who watch. State events go to all.
//! A command that does not take what it is sent is cut off, and holds up nobody.

use super::{
    client::Client,
    codec::{Codec, Frame, encode},
    console_log, local,
};
use crate::{
    failure::{Failure, Result, exit},
    vmfile::is_name,
};
use abi::control::{REPLY, ReplyHeader, VmName, code, event, request};
use std::{
    collections::{HashMap, hash_map::Entry},
    io::{self, Read as _, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Frames that may wait for one command before it is cut off.
const QUEUE: usize = 256;
/// Requests of one command that may be under way at once.
const PENDING_MAX: usize = 64;
/// How long a broker that ends waits for commands to take what is for them.
const SEND_TIME: Duration = Duration::from_millis(500);
/// Commands that may be connected at once.
const CLIENTS_MAX: usize = 256;

/// The broker. Its threads end when the hypervisor's stream does.
#[derive(Clone)]
pub struct Broker(Arc<Shared>);

struct Shared {
    /// Down to the hypervisor: one frame at a time.
    down: Mutex<UnixStream>,
    /// The same stream, to end it while somebody waits to send.
    hypervisor: UnixStream,
    state: Mutex<State>,
    /// Told when a command has been sent all that was for it.
    sent: Condvar,
    consoles: PathBuf,
    powering_off: AtomicBool,
}

#[derive(Default)]
struct State {
    clients: HashMap<u64, Connection>,
    /// By the tag sent down: who asked, and with which tag.
    pending: HashMap<u32, (u64, u32)>,
    next_client: u64,
    next_tag: u32,
    /// Threads that send to commands.
    senders: usize,
    gone: bool,
}

struct Connection {
    stream: UnixStream,
    queue: SyncSender<Arc<[u8]>>,
    watched: Vec<VmName>,
}

impl Broker {
    /// Begins to serve `hypervisor`'s stream; console logs go to the directory `consoles`.
    pub fn start(hypervisor: UnixStream, consoles: PathBuf) -> io::Result<Self> {
        let up = hypervisor.try_clone()?;
        let broker = Self(Arc::new(Shared {
            down: Mutex::new(hypervisor.try_clone()?),
            hypervisor,
            state: Mutex::new(State {
                // What EL2 still answers to a broker before this one is nobody's.
                next_tag: std::process::id() << 12,
                ..State::default()
            }),
            sent: Condvar::new(),
            consoles,
            powering_off: AtomicBool::new(false),
        }));
        let this = broker.clone();
        thread::Builder::new()
            .name("hypervisor".into())
            .spawn(move || this.read_hypervisor(up))?;
        Ok(broker)
    }

    /// Serves the commands that come to this socket, until [`Broker::close`].
    pub fn serve(&self, listener: UnixListener) -> io::Result<()> {
        let this = self.clone();
        thread::Builder::new()
            .name("accept".into())
            .spawn(move || {
                for stream in listener.incoming() {
                    // Who comes after a shutdown is told of it, until this process ends.
                    if this.state().gone && !this.is_powering_off() {
                        break;
                    }
                    // One that cannot be served finds its connection closed.
                    let _ = stream.and_then(|stream| this.attach(stream));
                }
            })?;
        Ok(())
    }

    /// A client in this process.
    pub fn client(&self) -> Result<Client> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                Failure::new(exit::MACHINE_DIED, "the machine is gone")
            }
            _ => Failure::new(
                exit::FAILED,
                format!("cannot connect to the broker: {error}"),
            ),
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        self.attach(theirs).map_err(failed)?;
        Ok(Client::new(ours))
    }

    /// Whether somebody has asked to power the machine off.
    pub fn is_powering_off(&self) -> bool {
        self.0.powering_off.load(Ordering::Relaxed)
    }

    /// The machine's end, which comes, is no accident.
    pub fn expect_end(&self) {
        self.0.powering_off.store(true, Ordering::Relaxed);
    }

    /// Cuts everybody off, once they have been sent the answers that were there (or will not take
    /// them).
    pub fn close(&self) {
        let _ = self.0.hypervisor.shutdown(Shutdown::Both);
        let mut state = self.state();
        state.gone = true;
        let last: Arc<[u8]> = shut_down().into();
        for connection in state.clients.values() {
            if self.is_powering_off() {
                let _ = connection.queue.try_send(Arc::clone(&last));
            }
            let _ = connection.stream.shutdown(Shutdown::Read);
        }
        state.clients.clear();
        let sending = |state: &mut State| state.senders > 0;
        drop(self.0.sent.wait_timeout_while(state, SEND_TIME, sending));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attach(&self, stream: UnixStream) -> io::Result<()> {
        let (queue, queued) = sync_channel::<Arc<[u8]>>(QUEUE);
        let (mut down, mut up) = (stream.try_clone()?, stream.try_clone()?);
        let mut state = self.state();
        if state.gone || state.clients.len() >= CLIENTS_MAX {
            if state.gone && self.is_powering_off() {
                up.write_all(&shut_down())?;
            }
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let id = state.next_client;
        state.next_client += 1;
        state.clients.insert(
            id,
            Connection {
                stream,
                queue,
                watched: Vec::new(),
            },
        );
        state.senders += 1;
        drop(state);
        let this = self.clone();
        thread::Builder::new()
            .name("to command".into())
            .spawn(move || {
                // Ends when the connection is dropped from the table, after what is queued.
                let _ = queued.iter().try_for_each(|bytes| up.write_all(&bytes));
                let _ = up.shutdown(Shutdown::Both);
                this.state().senders -= 1;
                this.0.sent.notify_all();
            })?;
        let this = self.clone();
        thread::Builder::new()
            .name("from command".into())
            .spawn(move || {
                read_frames(&mut down, |frame| this.forward(id, &frame));
                drop_client(&mut this.state(), id);
            })?;
        Ok(())
    }

    /// Passes a command's request down, or answers it here. `false` ends the connection.
    fn forward(&self, client: u64, frame: &Frame) -> bool {
        let mut state = self.state();
        if frame.kind == local::WATCH {
            return watch(&mut state, client, frame);
        }
        if state
            .pending
            .values()
            .filter(|(asker, _)| *asker == client)
            .count()
            >= PENDING_MAX
        {
            return false;
        }
        if frame.kind == request::POWER_OFF {
            self.expect_end();
        }
        let tag = state.next_tag;
        state.next_tag = tag.wrapping_add(1);
        state.pending.insert(tag, (client, frame.tag));
        drop(state);
        let bytes = encode(frame.kind, tag, &[&frame.payload]);
        let mut down = self.0.down.lock().unwrap_or_else(PoisonError::into_inner);
        // Who asks too late is told by `close`.
        down.write_all(&bytes).is_ok() || self.is_powering_off()
    }

    fn read_hypervisor(&self, mut up: UnixStream) {
        let mut logs = HashMap::new();
        read_frames(&mut up, |frame| {
            match frame.kind {
                event::CONSOLE_OUTPUT => self.console_output(&mut logs, &frame),
                event::STATE => self.state_changed(&frame),
                kind if kind & REPLY != 0 => self.answered(&frame),
                _ => {} // an event of a newer hypervisor
            }
            true
        });
        self.close();
    }

    fn answered(&self, frame: &Frame) {
        let mut state = self.state();
        if let Some((client, tag)) = state.pending.remove(&frame.tag) {
            let bytes = encode(frame.kind, tag, &[&frame.payload]);
            send(&mut state, client, bytes.into());
        }
    }

    fn state_changed(&self, frame: &Frame) {
        let bytes: Arc<[u8]> = encode(frame.kind, 0, &[&frame.payload]).into();
        let mut state = self.state();
        let all: Vec<u64> = state.clients.keys().copied().collect();
        for client in all {
            send(&mut state, client, Arc::clone(&bytes));
        }
    }

    /// Writes to the console's log, then wakes those who watch it.
    fn console_output(&self, logs: &mut HashMap<String, console_log::Writer>, frame: &Frame) {
        let Ok((name, bytes)) = VmName::read_from_prefix(&frame.payload) else {
            return;
        };
        let Some(vm) = name.as_str().filter(|vm| is_name(vm)) else {
            return;
        };
        // A disk that is full loses console output; the VMs go on.
        if let Ok(log) = log_of(logs, &self.0.consoles, vm) {
            let _ = log.write(bytes);
        }
        let wake: Arc<[u8]> = encode(frame.kind, 0, &[name.as_bytes()]).into();
        let state = self.state();
        for watcher in state
            .clients
            .values()
            .filter(|client| client.watched.contains(&name))
        {
            // Where the queue is full, what waits in it will wake the watcher late enough.
            let _ = watcher.queue.try_send(Arc::clone(&wake));
        }
    }
}

fn watch(state: &mut State, client: u64, frame: &Frame) -> bool {
    let name = VmName::read_from_bytes(&frame.payload).ok();
    let answer = if name.is_some() {
        code::OK
    } else {
        code::MALFORMED
    };
    if let Some(connection) = state.clients.get_mut(&client) {
        connection.watched.extend(name);
    }
    let header = ReplyHeader {
        code: answer,
        count: 0,
        value: 0,
    };
    let reply = encode(frame.kind | REPLY, frame.tag, &[header.as_bytes()]);
    send(state, client, reply.into());
    true
}

/// The last frame of a machine that was shut down.
fn shut_down() -> Vec<u8> {
    encode(local::SHUT_DOWN, 0, &[])
}

/// Queues a frame for a command, and cuts off one that does not take what it is sent.
fn send(state: &mut State, client: u64, bytes: Arc<[u8]>) {
    let Some(connection) = state.clients.get(&client) else {
        return;
    };
    if connection.queue.try_send(bytes).is_err() {
        drop_client(state, client);
    }
}

fn drop_client(state: &mut State, client: u64) {
    if let Some(connection) = state.clients.remove(&client) {
        let _ = connection.stream.shutdown(Shutdown::Both);
    }
}

/// A VM's console log, opened at its first use.
fn log_of<'l>(
    logs: &'l mut HashMap<String, console_log::Writer>,
    directory: &Path,
    vm: &str,
) -> io::Result<&'l mut console_log::Writer> {
    match logs.entry(vm.to_owned()) {
        Entry::Occupied(open) => Ok(open.into_mut()),
        Entry::Vacant(none) => {
            Ok(none.insert(console_log::Writer::open(console_log::path(directory, vm))?))
        }
    }
}

/// Hands each frame of a stream on until the stream ends or `take` says `false`.
fn read_frames(stream: &mut UnixStream, mut take: impl FnMut(Frame) -> bool) {
    let mut codec = Codec::default();
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => codec.push(buffer.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
        while let Some(frame) = codec.next_frame() {
            if !take(frame) {
                return;
            }
        }
    }
}
