//! Messages that a host of a VM gets from the others about its life, vCPUs and devices, in whatever state it is.

use crate::input::Input;
use abi::span::{GROUP1_TOO, Kind, Message, end};
use model_span::{Layout, Session, State, Todo};
use zerocopy::{IntoBytes, TryFromBytes};

const VCPUS: u8 = 6;
const SHAPE: u64 = 7;
const AHEAD_MAX: u64 = 1000;

/// Whatever is asked of the owner has a meaning at this host.
fn is_sound(session: &Session, (host, from): (u8, u8), todo: &Todo) -> bool {
    let layout = session.layout();
    let has = |vcpu: u8| session.host_of(vcpu) == Some(host);
    match todo {
        Todo::Nothing | Todo::Later | Todo::Start | Todo::TryAgain => true,
        Todo::Part => session.state() == State::Ended,
        Todo::Arrives(vcpu) => session.host_of(*vcpu) == Some(from),
        Todo::Live(Kind::End, why) => *why <= end::LAST,
        Todo::Live(kind, detail) => {
            matches!(kind, Kind::Pause | Kind::Resume) && matches!(detail, 0 | 1)
        }
        Todo::Wake(vcpu) => has(*vcpu),
        Todo::Asked(asked) => {
            let is_meant = match asked.kind {
                Kind::CpuOn | Kind::AffinityInfo => has(asked.detail),
                Kind::Load | Kind::Store => {
                    host == layout.first() && matches!(asked.detail, 1 | 2 | 4 | 8)
                }
                Kind::Sgi => {
                    let mut targets = (0..64).filter(|it| asked.at.get() >> it & 1 != 0);
                    asked.detail < 2 * GROUP1_TOO && targets.all(has)
                }
                _ => false,
            };
            is_meant && session.host_of(asked.vcpu) == Some(from)
        }
    }
}

/// Lets an own vCPU ask something or send an SGI, or one move.
fn act(
    session: &mut Session,
    host: u8,
    (kind, argument, word): (u8, u8, u64),
    send: impl FnMut(u8, Message),
) {
    let own = (0..VCPUS).filter(|it| session.host_of(*it) == Some(host));
    let own: Vec<u8> = own.collect();
    let vcpu = own.get(usize::from(argument) % own.len().max(1)).copied();
    let vcpu = vcpu.filter(|vcpu| !session.waits(*vcpu));
    match (kind % 8, vcpu) {
        (2, Some(vcpu)) if session.state() == State::Running => {
            let asked = match kind & 8 {
                0 => (Kind::Load, 4, word, 0),
                _ => (Kind::AffinityInfo, argument % VCPUS, 0, 0),
            };
            session.ask(vcpu, asked, send);
            session.take_answer(vcpu);
        }
        (3, Some(vcpu)) => {
            let sent = session.send_sgi(vcpu, (argument & 0xf, argument.into()), send);
            let mut here = (0..8).filter(|it| sent.unwrap_or(0) >> it & 1 != 0);
            assert!(here.all(|it| own.contains(&it)));
        }
        (4, _) if kind & 16 != 0 && session.leave().is_ok() => session.part(send),
        (4, _) if kind & 8 != 0 => {
            let _ = session.move_vcpu(argument % 8, argument >> 5, send);
        }
        (4, _) if session.leaves().is_some_and(|it| session.is_idle(it.0)) => session.left(send),
        _ => {}
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
        match kind % 8 {
            0 => {
                life = argument.into();
                session.announce(life, kind & 8 == 0, send);
            }
            1 => session.tell(Kind::Pause, argument & 1, send),
            2..=4 => {
                let word = input.u64().unwrap_or(0);
                act(&mut session, host, (kind, argument, word), send);
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
                    Ok(todo) => {
                        assert!(is_sound(&session, (host, from), &todo), "{todo:?}");
                        if let Todo::Arrives(vcpu) = todo {
                            session.arrived(vcpu);
                        }
                    }
                    Err(_) => return,
                }
            }
        }
    }
}
