//! What must hold of hosts at all times, and of what they send.

use abi::cluster::HOSTS_MAX;
use abi::link::{CHALLENGE, HELLO, Hello, NONCE_BYTES, Prefix, SEALED, Sealed};
use hypervisor::outside::cluster::Standing;
use std::collections::{HashMap, HashSet};
use zerocopy::FromBytes;

/// A membership: its id, and the life of each member.
pub type View = (u64, [u64; HOSTS_MAX]);

/// A host, as the judge sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// How it stood when it last did something.
    pub standing: &'a Standing,
    /// What its clock shows now.
    pub clock_ns: u64,
    /// The memberships that it has been in since it was started.
    pub past: &'a [View],
}

impl Seen<'_> {
    fn view(&self) -> View {
        (self.standing.id, self.standing.lives)
    }

    /// Whether it may run what it shares.
    pub fn runs(&self) -> bool {
        self.clock_ns < self.standing.runs_until_ns
    }
}

/// Looks at all hosts; `None` for those that are not there.
///
/// # Errors
/// What is wrong with them.
pub fn check(hosts: &[Option<Seen<'_>>]) -> Result<(), String> {
    for (h, host) in hosts.iter().enumerate() {
        let Some(host) = host.filter(|host| host.standing.id != 0 && host.runs()) else {
            continue;
        };
        let is_with = |g: usize| g != h && host.standing.lives[g] != 0;
        for (g, other) in hosts.iter().enumerate().filter(|(g, _)| is_with(*g)) {
            let Some(other) = other else { continue };
            if has_given_up(other, &host, h) {
                return Err(format!(
                    "host{h} runs what it shares with host{g}, which has given it up: {host:?}, {other:?}"
                ));
            }
            if disagree((&host, h), (other, g)) {
                return Err(format!(
                    "host{h} and host{g} disagree about who is in: {host:?}, {other:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Whether a host has left a membership in which another one still runs, host `h`, and does not wait until that one has
/// stopped.
fn has_given_up(host: &Seen<'_>, other: &Seen<'_>, h: usize) -> bool {
    let has_left =
        host.past.contains(&other.view()) && host.standing.lives[h] != other.standing.lives[h];
    let waits = host.clock_ns < host.standing.owes_until_ns && host.standing.id == 0;
    has_left && !waits
}

/// Whether two hosts that run are in memberships that cannot be: of one id with a life in common, and not the same; or, each
/// with the present life of the other, of which neither has grown out of the other.
///
/// A leader that was started anew may give an id again, to hosts of which none has been in its first membership.
fn disagree((one, h): (&Seen<'_>, usize), (other, g): (&Seen<'_>, usize)) -> bool {
    let (own, theirs) = (one.standing, other.standing);
    if theirs.id == 0 || !other.runs() {
        return false;
    }
    if own.id == theirs.id {
        let mut pairs = own.lives.iter().zip(&theirs.lives);
        let have_one_in_common = pairs.any(|(own, theirs)| *own != 0 && own == theirs);
        return have_one_in_common && own.lives != theirs.lives;
    }
    let know_each_other = own.lives[h] == theirs.lives[h] && own.lives[g] == theirs.lives[g];
    let (older, newer) = if own.id < theirs.id {
        (own, theirs)
    } else {
        (theirs, own)
    };
    let mut pairs = older.lives.iter().zip(&newer.lives);
    know_each_other && !pairs.all(|(old, new)| *old == 0 || old == new)
}

/// A membership without the lives that hosts have left on purpose.
pub fn without(left: &[u64], lives: [u64; HOSTS_MAX]) -> [u64; HOSTS_MAX] {
    lives.map(|life| if left.contains(&life) { 0 } else { life })
}

/// Whether a host may be in one membership after another: the later one has all lives of the earlier one, or the host has
/// left it and begun a new life.
pub fn may_follow(host: usize, (earlier, before): View, (later, after): View) -> bool {
    let mut pairs = before.iter().zip(&after);
    let has_grown = earlier <= later && pairs.all(|(old, new)| *old == 0 || old == new);
    has_grown || before[host] != after[host]
}

/// Numbers that may serve once only.
#[derive(Debug, Default)]
pub struct Numbers {
    /// The start of a host in which it had a life.
    lives: HashMap<(usize, u64), u64>,
    /// Sender, receiver, session and counter of sealed frames.
    sealed: HashSet<(u8, u8, u32, u64)>,
    /// The start of a host in which it used a nonce of a hello.
    nonces: HashMap<[u8; NONCE_BYTES], (u8, u8, u64)>,
}

impl Numbers {
    /// A host has a life in its so manieth start.
    ///
    /// # Errors
    /// It had that life before it crashed.
    pub fn lived(&mut self, host: usize, start: u64, life: u64) -> Result<(), String> {
        match *self.lives.entry((host, life)).or_insert(start) {
            first if first == start => Ok(()),
            _ => Err(format!("has come back in its old life {life:#x}")),
        }
    }

    /// A host has sent a frame, in its so manieth start.
    ///
    /// # Errors
    /// It is none of the link's, or a number in it has served before.
    pub fn sent(&mut self, from: usize, start: u64, frame: &[u8]) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("has sent {what}: {frame:x?}"));
        let Ok((prefix, _)) = Prefix::ref_from_prefix(frame) else {
            return wrong("a fragment");
        };
        if usize::from(prefix.from) != from {
            return wrong("a frame of another host");
        }
        match prefix.kind {
            HELLO | CHALLENGE => {
                let Ok((hello, _)) = Hello::ref_from_prefix(frame) else {
                    return wrong("a short hello");
                };
                let user = (prefix.from, prefix.to, start);
                if *self.nonces.entry(hello.mine).or_insert(user) != user {
                    return wrong("a nonce that has served before");
                }
            }
            SEALED => {
                let Ok((sealed, _)) = Sealed::ref_from_prefix(frame) else {
                    return wrong("a short frame");
                };
                let (session, counter) = (sealed.session.get(), sealed.counter.get());
                let number = (prefix.from, prefix.to, session, counter);
                if !self.sealed.insert(number) {
                    return wrong("a counter that has served before");
                }
            }
            _ => return wrong("a frame of no kind"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(id: u64, lives: [u64; 3], owes_until_ns: u64) -> Standing {
        let mut standing = Standing {
            id,
            runs_until_ns: 100,
            owes_until_ns,
            ..Standing::default()
        };
        standing.lives[..3].copy_from_slice(&lives);
        standing
    }

    fn judge(one: &Standing, other: &Standing, past: &[View]) -> bool {
        let seen = |standing, past| {
            Some(Seen {
                standing,
                clock_ns: 50,
                past,
            })
        };
        check(&[seen(one, &[]), seen(other, past)]).is_ok()
    }

    #[test]
    fn nobody_runs_what_another_has_given_up() {
        let host = standing(256, [1, 2, 0], 0);
        let past = [(256, host.lives)];
        assert!(judge(&host, &host, &past));
        assert!(judge(&host, &standing(0, [0, 3, 0], 60), &past), "it waits");
        assert!(!judge(&host, &standing(0, [0, 3, 0], 40), &past));
        assert!(!judge(&host, &standing(512, [0, 3, 0], 60), &past));
    }

    #[test]
    fn who_leaves_or_restarts_has_a_new_life() {
        let view = |id, lives| (id, standing(id, lives, 0).lives);
        let (first, grown) = (view(256, [1, 2, 0]), view(512, [1, 2, 3]));
        assert!(may_follow(0, first, grown) && !may_follow(0, grown, first));
        assert!(may_follow(0, grown, view(0, [4, 0, 0])));
        assert!(!may_follow(0, grown, view(0, [1, 0, 0])));
        let mut numbers = Numbers::default();
        assert!(numbers.lived(0, 1, 9).is_ok() && numbers.lived(0, 1, 9).is_ok());
        assert!(numbers.lived(1, 2, 9).is_ok() && numbers.lived(0, 2, 9).is_err());
    }

    #[test]
    fn memberships_grow_out_of_each_other() {
        let host = standing(256, [1, 2, 0], 0);
        assert!(judge(&host, &standing(512, [1, 2, 3], 0), &[]));
        assert!(!judge(&host, &standing(256, [1, 2, 3], 0), &[]));
        assert!(
            judge(&host, &standing(256, [4, 5, 3], 0), &[]),
            "a leader came back"
        );
        let three = standing(256, [1, 2, 4], 0);
        assert!(!judge(&three, &standing(512, [1, 2, 3], 0), &[]));
    }
}
