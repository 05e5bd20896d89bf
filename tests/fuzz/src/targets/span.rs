//! Messages that a host of a VM gets from the others about its life, vCPUs and devices, in whatever state it is.

use crate::input::Input;
use abi::span::{GROUP1_TOO, Kind, Message, end};
use model_span::{Layout, Session, State, Todo};
use zerocopy::{IntoBytes, TryFromBytes};

const VCPUS: u8 = 6;
const SHAPE: u64 = 7;
const AHEAD_MAX: u64 = 1000;

/// Whatever is asked of the owner has a meaning at this host.
fn is_sound(layout: &Layout, host: u8, from: u8, todo: &Todo) -> bool {
    let own = layout.vcpus_of(host);
    match todo {
        Todo::Nothing | Todo::Later | Todo::Start => true,
        Todo::Live(Kind::End, why) => *why <= end::LAST,
        Todo::Live(kind, detail) => {
            matches!(kind, Kind::Pause | Kind::Resume) && matches!(detail, 0 | 1)
        }
        Todo::Wake(vcpu) => own.contains(vcpu),
        Todo::Asked(asked) => {
            let is_meant = match asked.kind {
                Kind::CpuOn | Kind::AffinityInfo => own.contains(&asked.detail),
                Kind::Load | Kind::Store => {
                    host == layout.first() && matches!(asked.detail, 1 | 2 | 4 | 8)
                }
                Kind::Sgi => {
                    asked.detail < 2 * GROUP1_TOO && asked.at.get() & !layout.bits_of(host) == 0
                }
                _ => false,
            };
            is_meant && layout.host_of(asked.vcpu) == Some(from)
        }
    }
}

/// Requests of own vCPUs, and messages: those that are of this life and present time more often than not.
pub fn span_message(data: &[u8]) {
    let mut input = Input(data);
    let Ok(layout) = Layout::new(0b1011, VCPUS, 6 << 21) else {
        return;
    };
    let host = [0, 1, 3][usize::from(input.u8().unwrap_or(0)) % 3];
    let mut session = Session::new(layout, host, SHAPE, AHEAD_MAX);
    let own = layout.vcpus_of(host);
    let send = |to: u8, message: Message| {
        assert!(to != host && layout.has(to));
        assert_eq!(
            Message::try_read_from_bytes(message.as_bytes()),
            Ok(message)
        );
    };
    let (mut now, mut life) = (0, 1);
    while let Some(kind) = input.u8() {
        now += u64::from(kind);
        let argument = input.u8().unwrap_or(0);
        let vcpu = own.start + argument % (own.end - own.start);
        match kind % 8 {
            0 => {
                life = argument.into();
                session.announce(life, kind & 8 == 0, send);
            }
            1 => session.tell(Kind::Pause, argument & 1, send),
            2 if !session.waits(vcpu) && session.state() == State::Running => {
                let asked = (Kind::Load, 4, input.u64().unwrap_or(0), 0);
                session.ask(vcpu, layout.first(), asked, |to, _| assert!(layout.has(to)));
                session.take_answer(vcpu);
            }
            3 if !session.waits(vcpu) => {
                let targets = u64::from(argument) & !layout.bits_of(host);
                session.send_sgi(vcpu, (argument & 0xf, targets), send);
            }
            _ => {
                let mut bytes = [0; size_of::<Message>()];
                let given = input.bytes(bytes.len() - usize::from(kind / 224));
                bytes[..given.len()].copy_from_slice(given);
                bytes[3] = u8::from(kind % 8 == 7);
                if kind & 8 == 0 {
                    bytes[4..8].copy_from_slice(&life.to_le_bytes());
                    bytes[8..16].copy_from_slice(&now.to_le_bytes());
                }
                let message = &bytes[..given.len()];
                let from = argument % 5;
                if session
                    .behind(from, message, now)
                    .is_ok_and(|at| at.is_some_and(|at| at > now + AHEAD_MAX))
                {
                    // Only a start sets a clock freely.
                    assert_eq!(session.state(), State::Waiting);
                }
                match session.receive(from, message, send) {
                    Ok(todo) => assert!(is_sound(&layout, host, from, &todo), "{todo:?}"),
                    Err(_) => return,
                }
            }
        }
    }
}
