//! A debugger at QEMU's gdb stub: it stops the machine, and changes what its only CPU does next.
//!
//! The stub speaks the remote serial protocol of GDB (GDB manual, appendix E); it is asked for at QEMU's monitor.

use crate::{Outcome, because};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

/// How long the machine may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Numbers of registers after X0 to X30 (GDB's `org.gnu.gdb.aarch64.core`).
pub const SP: u32 = 31;
/// The program counter.
pub const PC: u32 = 32;
/// The processor state.
pub const CPSR: u32 = 33;

/// A machine that stands still until [`Self::go_on`].
pub struct Debugger(UnixStream);

impl Debugger {
    /// Stops the machine whose monitor is at `qmp`; the stub's socket is made beside it.
    ///
    /// # Errors
    /// The monitor or the stub does not answer.
    pub fn stop(qmp: &Path) -> Outcome<Self> {
        let stub = qmp.with_file_name("gdb.sock");
        let mut monitor = connect(qmp)?;
        let command = format!("gdbserver unix:{},server=on,wait=off", stub.display());
        let asked = serde_json::json!({
            "execute": "human-monitor-command", "arguments": { "command-line": command },
        });
        for line in [
            "{\"execute\":\"qmp_capabilities\"}".to_owned(),
            asked.to_string(),
        ] {
            writeln!(monitor, "{line}").map_err(because("the monitor is gone"))?;
        }
        let deadline = Instant::now() + ANSWER;
        while !stub.exists() {
            if Instant::now() > deadline {
                return Err("QEMU has no gdb stub".to_owned());
            }
            sleep(Duration::from_millis(20));
        }
        let mut debugger = Self(connect(&stub)?);
        debugger.ask("?").map(|_| debugger)
    }

    /// A register.
    ///
    /// # Errors
    /// The stub does not answer.
    pub fn register(&mut self, number: u32) -> Outcome<u64> {
        let bytes = bytes_of(&self.ask(&format!("p{number:x}"))?)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | u64::from(*byte)))
    }

    /// Changes a register.
    ///
    /// # Errors
    /// The stub refuses.
    pub fn set_register(&mut self, number: u32, value: u64) -> Outcome {
        let value = value.swap_bytes();
        match self.ask(&format!("P{number:x}={value:016x}"))?.as_str() {
            "OK" => Ok(()),
            said => Err(format!("register {number} cannot be changed: {said}")),
        }
    }

    /// Bytes where the CPU's translation has memory; `None` where it has none.
    ///
    /// # Errors
    /// The stub does not answer.
    pub fn memory(&mut self, at: u64, bytes: usize) -> Outcome<Option<Vec<u8>>> {
        let said = self.ask(&format!("m{at:x},{bytes:x}"))?;
        Ok(if said.starts_with('E') {
            None
        } else {
            Some(bytes_of(&said)?)
        })
    }

    /// Lets the machine go on, and leaves it.
    ///
    /// # Errors
    /// The stub does not answer.
    pub fn go_on(mut self) -> Outcome {
        self.ask("D").map(drop)
    }

    fn ask(&mut self, packet: &str) -> Outcome<String> {
        let sum = packet.bytes().fold(0_u8, u8::wrapping_add);
        write!(self.0, "${packet}#{sum:02x}").map_err(because("the gdb stub is gone"))?;
        let mut said = Vec::new();
        while !said
            .rsplit(|byte| *byte == b'#')
            .next()
            .is_some_and(|sum| sum.len() == 2 && said.contains(&b'#'))
        {
            let mut byte = [0];
            self.0
                .read_exact(&mut byte)
                .map_err(because("the gdb stub keeps silent"))?;
            said.push(byte[0]);
        }
        // A stub that was told to leave may be gone by now; one that should not be is noticed by the next packet.
        let _ = self.0.write_all(b"+");
        let text = String::from_utf8_lossy(&said).into_owned();
        let packet = text
            .split_once('$')
            .and_then(|(_, rest)| rest.rsplit_once('#'));
        packet.map(|(packet, _)| packet.to_owned()).ok_or(text)
    }
}

fn connect(socket: &Path) -> Outcome<UnixStream> {
    let tried = || format!("cannot connect to {}", socket.display());
    let stream = UnixStream::connect(socket).map_err(because(tried()))?;
    stream
        .set_read_timeout(Some(ANSWER))
        .map_err(because(tried()))?;
    Ok(stream)
}

fn bytes_of(hex: &str) -> Outcome<Vec<u8>> {
    let byte = |n: usize| {
        hex.get(n..n + 2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
    };
    let bytes = (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>();
    bytes.ok_or_else(|| format!("the gdb stub says '{hex}'"))
}
