//! A run as one page: what `underpin top --batch -o json` printed, drawn.

mod chart;
mod page;

pub use page::html;

use crate::order::natural;
use serde_json::Value;
use tools_abi::EXIT_CLASSES;

/// A run: samples one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The host of a cluster that it was, if it was one: any text.
    pub host: Option<String>,
    /// The machine's CPUs.
    pub cpus: f64,
    /// The machine's memory in bytes.
    pub memory: f64,
    /// The samples.
    pub points: Vec<Point>,
}

/// A sample of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// Seconds since the machine started.
    pub at: f64,
    /// CPUs that were busy since the sample before.
    pub busy: f64,
    /// Memory in bytes: used, shared, saved.
    pub memory: [f64; 3],
    /// The VMs.
    pub vms: Vec<VmPoint>,
}

/// A sample of a VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VmPoint {
    /// Its name: any text.
    pub name: String,
    /// CPU time in percent of one CPU: run, hypervisor, steal, idle.
    pub shares: [f64; 4],
    /// Exits per second by class.
    pub exits: Vec<f64>,
    /// Memory in bytes: private, shared.
    pub memory: [f64; 2],
    /// Bytes a second: read, written.
    pub disk: [f64; 2],
    /// Bytes a second: sent, received.
    pub net: [f64; 2],
}

impl Run {
    /// Reads samples, an object on a line each.
    ///
    /// # Errors
    /// A line that is no sample, by its number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut run = Self::default();
        for (n, line) in text.lines().enumerate() {
            let wrong = |what: String| format!("line {}: {what}", n + 1);
            let value: Value = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
            let point = point(&value).map_err(wrong)?;
            if run.points.last().is_some_and(|last| last.at >= point.at) {
                return Err(wrong("its time is not after the line before".to_owned()));
            }
            run.host = value["host"].as_str().map(str::to_owned);
            run.cpus = number(&value["machine"], "cpus").map_err(wrong)?;
            run.memory = number(&value["machine"], "memory").map_err(wrong)?;
            run.points.push(point);
        }
        Ok(run)
    }

    /// The names of all VMs that were ever there, in the order they came.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for vm in self.points.iter().flat_map(|point| &point.vms) {
            if !names.contains(&vm.name.as_str()) {
                names.push(&vm.name);
            }
        }
        names.sort_by(|a, b| natural(a, b));
        names
    }

    /// Something of one VM over time; where it was not there, nothing.
    pub fn of_vm<const N: usize>(
        &self,
        name: &str,
        what: fn(&VmPoint) -> [f64; N],
    ) -> Vec<[f64; N]> {
        let of = |point: &Point| {
            let vm = point.vms.iter().find(|vm| vm.name == name);
            vm.map_or([0.0; N], what)
        };
        self.points.iter().map(of).collect()
    }
}

fn point(value: &Value) -> Result<Point, String> {
    let machine = &value["machine"];
    let vms = value["vms"].as_array().ok_or("it has no vms")?;
    Ok(Point {
        at: number(value, "uptime_ns")? / 1e9,
        busy: number(machine, "cpus_busy")?,
        memory: [
            number(machine, "used")?,
            number(machine, "shared")?,
            number(machine, "saved")?,
        ],
        vms: vms.iter().map(vm).collect::<Result<_, _>>()?,
    })
}

fn vm(value: &Value) -> Result<VmPoint, String> {
    let exits = &value["exits_per_second"];
    let exits = EXIT_CLASSES.iter().map(|class| number(exits, class));
    let (disk, memory) = (&value["disk"], &value["memory"]);
    let bytes = |key: &str| match memory {
        Value::Null => Ok(0.0), // it does not run
        memory => number(memory, key),
    };
    Ok(VmPoint {
        name: value["name"].as_str().ok_or("a VM has no name")?.to_owned(),
        shares: [
            number(value, "cpu_percent")?,
            number(value, "hypervisor_percent")?,
            number(value, "steal_percent")?,
            number(value, "idle_percent")?,
        ],
        exits: exits.collect::<Result<_, _>>()?,
        memory: [bytes("private")?, bytes("shared")?],
        disk: [
            number(disk, "read_bytes_per_second")?,
            number(disk, "written_bytes_per_second")?,
        ],
        net: match &value["net"] {
            // Samples of a command that did not know it.
            Value::Null => [0.0; 2],
            net => [
                number(net, "sent_bytes_per_second")?,
                number(net, "received_bytes_per_second")?,
            ],
        },
    })
}

/// A number that can be drawn.
fn number(value: &Value, key: &str) -> Result<f64, String> {
    let number = value[key].as_f64().filter(|n| (0.0..1e20).contains(n));
    number.ok_or_else(|| format!("'{key}' is {}, not a number from 0 on", value[key]))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// A sample at so many seconds, of VMs of these names that do so much.
    pub fn line(at: u64, vms: &[(&str, f64)]) -> String {
        let vm = |(name, n): &(&str, f64)| {
            let exits = EXIT_CLASSES
                .iter()
                .map(|class| ((*class).to_owned(), json!(n)));
            json!({
                "name": name, "cpu_percent": n, "hypervisor_percent": n / 4.0,
                "steal_percent": 0.0, "idle_percent": 1.0,
                "exits_per_second": exits.collect::<serde_json::Map<_, _>>(),
                "disk": { "read_bytes_per_second": n * 1e6, "written_bytes_per_second": 0 },
                "net": { "sent_bytes_per_second": n * 1e5, "received_bytes_per_second": n },
                "memory": { "private": n * 1e6, "shared": 4096 },
            })
        };
        json!({
            "uptime_ns": at * 1_000_000_000,
            "machine": { "cpus": 2, "cpus_busy": 1.5, "memory": 1u64 << 31, "used": 1 << 28,
                         "shared": 1 << 20, "saved": 1 << 20 },
            "vms": vms.iter().map(vm).collect::<Value>(),
        })
        .to_string()
    }

    #[test]
    fn lines_that_are_no_samples_are_refused_by_number() {
        let good = line(1, &[("a", 5.0)]);
        let run = Run::parse(&good).unwrap();
        assert_eq!(
            (run.points.len(), run.names(), run.cpus),
            (1, vec!["a"], 2.0)
        );
        for (bad, said) in [
            ("{".to_owned(), "line 2: EOF"),
            ("{}".to_owned(), "line 2: it has no vms"),
            (good.clone(), "line 2: its time"),
            (line(2, &[("a", -1.0)]), "line 2: 'cpu_percent' is -1.0"),
            (line(2, &[("a", 1e300)]), "line 2: 'cpu_percent' is"),
        ] {
            let failed = Run::parse(&format!("{good}\n{bad}")).unwrap_err();
            assert!(failed.starts_with(said), "{failed}");
        }
    }

    #[test]
    fn a_page_names_the_host_that_the_run_is_of() {
        let of = |host: Option<&str>| {
            let mut sample: Value = serde_json::from_str(&line(1, &[("a", 5.0)])).unwrap();
            if let Some(host) = host {
                sample["host"] = host.into();
            }
            html(&Run::parse(&sample.to_string()).unwrap())
        };
        for (host, title) in [
            (None, "Underpin: a run"),
            (Some("host1"), "Underpin: a run of host1"),
            (Some("<b>"), "Underpin: a run of &lt;b&gt;"),
        ] {
            for element in ["title", "h1"] {
                let text = format!("<{element}>{title}</{element}>");
                assert!(of(host).contains(&text), "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_run_is_a_page_whose_plots_stay_in_their_frames(
            points in proptest::collection::vec(
                proptest::collection::vec(("[ -~]{1,9}", 0.0..1e9f64), 0..3), 0..12),
        ) {
            let lines = points.iter().enumerate().map(|(n, vms)| {
                let vms: Vec<_> = vms.iter().map(|(name, n)| (name.as_str(), *n)).collect();
                line(n as u64 + 1, &vms)
            });
            let text = lines.collect::<Vec<_>>().join("\n");
            let page = html(&Run::parse(&text).unwrap());
            prop_assert!(!page.contains("NaN") && !page.contains("inf"));
            for path in page.split(" d=\"").skip(1) {
                let path = path.split('"').next().unwrap();
                for pair in path.split(['M', 'L', 'Z']).filter(|pair| !pair.trim().is_empty()) {
                    let (x, y) = pair.trim().split_once(' ').unwrap();
                    let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                    prop_assert!((0.0..=chart::WIDTH).contains(&x), "{path}");
                    prop_assert!((0.0..=chart::HEIGHT).contains(&y), "{path}");
                }
            }
        }
    }
}
