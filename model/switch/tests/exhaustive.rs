//! Every order of every CPU's steps, with a failure at every place.

#![allow(clippy::unwrap_used)]

use model_switch::{Meeting, Poll, Reason, Side, Visit};
use std::collections::HashSet;

const STEPS: usize = 2;

/// A CPU of a machine: bit `n` says that step `n` is taken, bit 7 that the switch is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cpu {
    bits: u8,
    fails_at: Option<usize>,
}

const SWITCHED: u8 = 1 << 7;

impl Side for Cpu {
    const STEPS: usize = STEPS;

    fn take(&mut self, step: usize) -> Result<(), Reason> {
        if self.fails_at == Some(step) {
            return Err(reason(step));
        }
        assert_eq!(self.bits, (1 << step) - 1, "steps are taken in order");
        self.bits |= 1 << step;
        Ok(())
    }

    fn undo(&mut self, step: usize) {
        assert_eq!(
            self.bits,
            (2 << step) - 1,
            "the latest step is undone first"
        );
        self.bits &= !(1 << step);
    }

    fn commit(&mut self) {
        assert_eq!(self.bits, (1 << STEPS) - 1);
        self.bits = SWITCHED;
    }
}

fn reason(step: usize) -> Reason {
    Reason::new(step as u16 + 1).unwrap()
}

const LATE: u16 = 99;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Actor {
    cpu: Cpu,
    visit: Visit,
    end: Option<Result<(), u16>>,
}

/// All states that can be reached from here, each visited once; `late` CPUs may lose patience at
/// any time.
struct Search {
    late: bool,
    seen: HashSet<(u64, Vec<Actor>)>,
    ends: usize,
}

impl Search {
    fn run(cpus: usize, failing: Option<(usize, usize)>, late: bool) -> Self {
        let actors = (0..cpus)
            .map(|n| Actor {
                cpu: Cpu {
                    bits: 0,
                    fails_at: failing.filter(|(cpu, _)| *cpu == n).map(|(_, step)| step),
                },
                visit: Visit::new(cpus as u32),
                end: None,
            })
            .collect();
        let mut search = Self {
            late,
            seen: HashSet::new(),
            ends: 0,
        };
        search.explore(0, actors);
        search
    }

    /// Whether there is an end where all switched, and one where none did.
    fn outcomes(&self) -> [bool; 2] {
        [true, false].map(|done| {
            let is_so = |actor: &Actor| actor.end.is_some_and(|end| end.is_ok() == done);
            self.seen.iter().any(|(_, actors)| actors.iter().all(is_so))
        })
    }

    fn explore(&mut self, word: u64, actors: Vec<Actor>) {
        let mut stack = vec![(word, actors)];
        while let Some((word, actors)) = stack.pop() {
            if !self.seen.insert((word, actors.clone())) {
                continue;
            }
            if actors.iter().all(|actor| actor.end.is_some()) {
                self.check_end(word, &actors);
                continue;
            }
            for n in (0..actors.len()).filter(|n| actors[*n].end.is_none()) {
                for patience in [true, false] {
                    if patience || self.late {
                        stack.push(Self::step(word, &actors, n, patience));
                    }
                }
            }
        }
    }

    fn step(word: u64, actors: &[Actor], n: usize, patience: bool) -> (u64, Vec<Actor>) {
        let meeting = Meeting::from_word(word);
        let mut actors = actors.to_vec();
        let actor = &mut actors[n];
        let late = || (!patience).then(|| Reason::new(LATE).unwrap());
        match actor.visit.poll(&meeting, &mut actor.cpu, late) {
            Poll::Working | Poll::Waiting => {}
            Poll::Done => actor.end = Some(Ok(())),
            Poll::Failed(reason) => actor.end = Some(Err(reason.get())),
            Poll::Excluded => actor.end = Some(Err(0)),
        }
        (meeting.word(), actors)
    }

    /// All switched, or none; one reason; the meeting is ready for the next.
    fn check_end(&mut self, word: u64, actors: &[Actor]) {
        self.ends += 1;
        let done = actors
            .iter()
            .filter(|actor| actor.end == Some(Ok(())))
            .count();
        let switched = actors
            .iter()
            .filter(|actor| actor.cpu.bits == SWITCHED)
            .count();
        let untouched = actors.iter().filter(|actor| actor.cpu.bits == 0).count();
        assert_eq!(done, switched);
        assert!(
            done == actors.len() || done == 0 && untouched == actors.len(),
            "{actors:?}"
        );
        if !self.late {
            assert_eq!(word, 0, "somebody is still there");
            assert!(actors.iter().all(|actor| actor.end == actors[0].end));
        }
    }
}

#[test]
fn without_a_failure_all_switch() {
    for cpus in 1..=4 {
        let search = Search::run(cpus, None, false);
        assert!(search.ends == 1, "{cpus} CPUs end in {} ways", search.ends);
        assert!(search.seen.iter().all(|(_, actors)| {
            actors
                .iter()
                .all(|actor| !matches!(actor.end, Some(Err(_))))
        }));
    }
}

#[test]
fn a_failure_anywhere_undoes_all() {
    for cpus in 1..=4 {
        for failing in 0..cpus {
            for step in 0..STEPS {
                let search = Search::run(cpus, Some((failing, step)), false);
                assert!(search.ends >= 1);
                let wanted = Some(Err(reason(step).get()));
                for (_, actors) in &search.seen {
                    for actor in actors.iter().filter(|actor| actor.end.is_some()) {
                        assert_eq!(actor.end, wanted);
                    }
                }
            }
        }
    }
}

/// CPUs lose patience at any time, also as the last vote comes. Somebody who comes when the others
/// have given up finds an empty meeting, waits alone, and gives up too.
#[test]
fn impatience_never_splits_the_machine() {
    for cpus in 1..=3 {
        let search = Search::run(cpus, None, true);
        // One never waits for another; of several, all switch or all give up.
        assert_eq!(
            search.outcomes(),
            if cpus == 1 {
                [true, false]
            } else {
                [true, true]
            }
        );
    }
}

#[test]
fn who_names_another_number_is_excluded() {
    let meeting = Meeting::new();
    let mut cpu = Cpu {
        bits: 0,
        fails_at: None,
    };
    let mut first = Visit::new(2);
    assert_eq!(first.poll(&meeting, &mut cpu, || None), Poll::Working);
    for wrong in [0, 1, 3, 256] {
        let mut other = Visit::new(wrong);
        assert_eq!(other.poll(&meeting, &mut cpu, || None), Poll::Excluded);
        assert_eq!(cpu.bits, 0);
    }
    assert!(!meeting.is_empty());
}
