//! Steps with names and times: a bar on a terminal, plain lines without one.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::{
    fs,
    io::{self, BufRead as _, BufReader, IsTerminal as _, Read, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Lines of a failed command's output that are shown.
const TAIL_LINES: usize = 60;

/// What a step gives, or the sentence that says why it failed.
pub type Outcome<T = ()> = Result<T, String>;

/// A step that ended.
#[derive(Clone, Debug)]
pub struct Done {
    /// Name of the step.
    pub name: String,
    /// Time from its begin to its end.
    pub time: Duration,
    /// Whether it succeeded.
    pub is_good: bool,
}

/// A series of steps. Some can run at the same time, from threads of their own.
#[derive(Debug)]
pub struct Steps {
    count: usize,
    begun: AtomicUsize,
    done: Mutex<Vec<Done>>,
    bars: MultiProgress,
    logs: PathBuf,
}

/// A step under way.
pub struct Step<'a> {
    title: String,
    bar: Option<ProgressBar>,
    log: PathBuf,
    _steps: &'a Steps,
}

impl Steps {
    /// So many steps; the output of what they run goes to files in `logs`.
    pub fn new(count: usize, logs: PathBuf) -> Self {
        Self {
            count,
            begun: AtomicUsize::new(0),
            done: Mutex::default(),
            bars: MultiProgress::new(),
            logs,
        }
    }

    /// Returns the steps that have ended, in that order.
    pub fn done(&self) -> Vec<Done> {
        lock(&self.done).clone()
    }

    /// Runs one step; tells its name, time and, where it fails, why.
    pub fn run<T>(&self, name: &str, work: impl FnOnce(&mut Step<'_>) -> Outcome<T>) -> Option<T> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let title = format!("[{number}/{}] {name}", self.count);
        let bar = io::stdout()
            .is_terminal()
            .then(|| self.bars.add(spinner(&title)));
        if bar.is_none() {
            print_line(&title);
        }
        let log = self
            .logs
            .join(format!("{}.log", name.replace([' ', '/'], "-")));
        let start = Instant::now();
        let mut step = Step {
            title: title.clone(),
            bar,
            log,
            _steps: self,
        };
        let outcome = work(&mut step);
        if let Some(bar) = &step.bar {
            bar.finish_and_clear();
        }
        let time = start.elapsed();
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        let mut end = format!("{title}: {verdict} ({:.1} s)", time.as_secs_f32());
        if let Err(why) = &outcome {
            end.extend(["\n", why]);
        }
        // Bars of other steps are not written over.
        self.bars.suspend(|| print_line(&end));
        lock(&self.done).push(Done {
            name: name.to_owned(),
            time,
            is_good: outcome.is_ok(),
        });
        outcome.ok()
    }
}

/// What a panic of another thread left is whole all the same: each change is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spinner(title: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg:.dim}")
    {
        bar.set_style(style);
    }
    bar.set_prefix(title.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Prints a line, and does not mind that nobody reads it any more.
pub fn print_line(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

impl Step<'_> {
    /// Says what it is doing now.
    pub fn doing(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None => print_line(&format!("{}: {what}", self.title)),
        }
    }

    /// Whether [`Self::doing`] shows in place, so that it can be told often.
    pub fn has_bar(&self) -> bool {
        self.bar.is_some()
    }

    /// Prints a line that stays.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => print_line(line),
        }
    }

    /// Runs a command to its end; gives all it printed. A bar shows its last line.
    ///
    /// # Errors
    /// It cannot be started or fails; the end of its output is in the sentence.
    pub fn command(&self, command: &mut Command) -> Outcome<String> {
        let (success, output) = self.watch(command, |_| {})?;
        if success {
            Ok(output)
        } else {
            Err(self.failed(command, &output))
        }
    }

    /// Runs a command to its end and hands each line to `each`; gives whether it succeeded and all
    /// it printed.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn watch(
        &self,
        command: &mut Command,
        mut each: impl FnMut(&str),
    ) -> Outcome<(bool, String)> {
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot run {name}: {error}"))?;
        let (sender, lines) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            forward(out, sender.clone());
        }
        if let Some(err) = child.stderr.take() {
            forward(err, sender.clone());
        }
        drop(sender);
        let mut output = String::new();
        for line in lines {
            if let Some(bar) = &self.bar {
                bar.set_message(line.trim().to_owned());
            }
            each(&line);
            output.extend([&line, "\n"]);
        }
        let status = child
            .wait()
            .map_err(|error| format!("cannot wait for {name}: {error}"))?;
        // A log is a help; the step does not fail for want of it.
        let _ = self.log.parent().map(fs::create_dir_all);
        let _ = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .and_then(|mut log| log.write_all(output.as_bytes()));
        Ok((status.success(), output))
    }

    /// The sentence about a command that failed, with the end of what it printed.
    pub fn failed(&self, command: &Command, output: &str) -> String {
        let words: Vec<_> = command
            .get_args()
            .map(|word| word.to_string_lossy())
            .collect();
        let lines: Vec<&str> = output.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        let name = command.get_program().to_string_lossy();
        format!(
            "{tail}\n'{name} {}' failed; all it printed is in {}",
            words.join(" "),
            self.log.display()
        )
    }
}

/// Sends each line of a stream, from a thread of its own.
fn forward(stream: impl Read + Send + 'static, sender: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line)
                .trim_end_matches('\r')
                .to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_and_failures_show_the_end() {
        let logs = std::env::temp_dir().join(format!("steps-{}", std::process::id()));
        let steps = Steps::new(2, logs.clone());
        let good = steps.run("good", |step| {
            step.command(Command::new("sh").args(["-c", "echo one; echo two >&2"]))
        });
        assert!(good.is_some_and(|said| said.contains("one\n") && said.contains("two\n")));
        let mut why = String::new();
        let bad: Option<()> = steps.run("bad step", |step| {
            why = step
                .command(Command::new("sh").args(["-c", "echo reason; exit 3"]))
                .unwrap_err();
            Err(why.clone())
        });
        assert!(bad.is_none() && why.starts_with("reason\n") && why.contains("bad-step.log"));
        let ends: Vec<bool> = steps.done().iter().map(|step| step.is_good).collect();
        assert_eq!(ends, [true, false]);
        assert_eq!(
            fs::read_to_string(logs.join("bad-step.log")).unwrap(),
            "reason\n"
        );
        fs::remove_dir_all(logs).unwrap();
    }
}
