//! The page: a summary and the plots, with nothing that must be fetched.

use super::{
    Run, VmPoint,
    chart::{Chart, Unit},
};
use crate::units;
use std::fmt::Write as _;
use tools_abi::EXIT_CLASSES;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1b1b;--dim:#666;--line:#ddd;--paper:#fff;--card:#f7f7f7}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--dim:#aaa;--line:#444;--paper:#151515;--card:#1e1e1e}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;
max-width:1280px;padding:1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:1.6rem 0 .4rem}
p{margin:.3rem 0;color:var(--dim)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem}
figure{margin:0;padding:.7rem;background:var(--card);border:1px solid var(--line);border-radius:6px}
figcaption{font-weight:600}
svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:var(--dim)}
svg line{stroke:var(--line)}
.legend{font-size:.85rem}.legend span{display:inline-block;margin-right:.8em}
.legend i{display:inline-block;width:.75em;height:.75em;margin-right:.35em;border-radius:2px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}";

/// The most classes of exits that a chart tells apart; the rest is one part.
const CLASSES_MAX: usize = 7;

/// Text as HTML shows it.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The run as a page.
pub fn html(run: &Run) -> String {
    let of = run
        .host
        .as_deref()
        .map(|host| format!(" of {}", escape(host)));
    let title = format!("Underpin: a run{}", of.unwrap_or_default());
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title>\n<style>{STYLE}</style></head><body>\n\
         <h1>{title}</h1>\n"
    );
    let names = run.names();
    let first = run.points.first().map_or(0.0, |point| point.at);
    let last = run.points.last().map_or(0.0, |point| point.at);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "<p>{} CPUs, {} of memory, {} VMs; {} samples, from {first:.1} s to {last:.1} s after the \
         machine's start</p>",
        run.cpus,
        units::size(run.memory as u64),
        names.len(),
        run.points.len()
    );
    if run.points.is_empty() {
        text.push_str("<p>There are no samples.</p>\n");
    } else {
        summary(&mut text, run, &names);
        section(&mut text, "The machine", &machine(run, &names));
        for name in names {
            section(&mut text, name, &vm(run, name));
        }
    }
    text.push_str("</body></html>\n");
    text
}

fn section(text: &mut String, title: &str, charts: &[Chart]) {
    let _ = writeln!(text, "<h2>{}</h2>\n<div class=\"plots\">", escape(title));
    for chart in charts {
        chart.draw(text);
    }
    text.push_str("</div>\n");
}

/// Each VM in a line: means over the samples, and its memory at the end.
fn summary(text: &mut String, run: &Run, names: &[&str]) {
    text.push_str(
        "<div class=\"wide\"><table><tr><th>VM<th>run %<th>hypervisor %<th>steal %<th>exits/s\
         <th>resident<th>shared<th>read<th>written</tr>\n",
    );
    for name in names {
        let count = run.points.len() as f64;
        let [ran, hypervisor, steal, _] = mean(&run.of_vm(name, |vm| vm.shares), count);
        let [exits] = mean(&run.of_vm(name, |vm| [vm.exits.iter().sum()]), count);
        let [read, written] = mean(&run.of_vm(name, |vm| vm.disk), count);
        let memory = run.of_vm(name, |vm| vm.memory);
        let [private, shared] = memory.last().copied().unwrap_or_default();
        let _ = writeln!(
            text,
            "<tr><td>{}<td>{ran:.1}<td>{hypervisor:.1}<td>{steal:.1}<td>{exits:.0}<td>{}<td>{}\
             <td>{}/s<td>{}/s</tr>",
            escape(name),
            units::size((private + shared) as u64),
            units::size(shared as u64),
            units::size(read as u64),
            units::size(written as u64)
        );
    }
    text.push_str("</table></div>\n");
}

fn mean<const N: usize>(values: &[[f64; N]], count: f64) -> [f64; N] {
    std::array::from_fn(|n| values.iter().map(|values| values[n]).sum::<f64>() / count)
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn machine(run: &Run, names: &[&str]) -> Vec<Chart> {
    let over_time = |values: Vec<Vec<f64>>| {
        let times = run.points.iter().map(|point| point.at);
        times.zip(values).collect::<Vec<_>>()
    };
    let memory = run.points.iter().map(|point| point.memory.to_vec());
    let busy = run.points.iter().map(|point| vec![point.busy]);
    let of_vms = |what: fn(&VmPoint) -> [f64; 1]| {
        let vms: Vec<_> = names.iter().map(|name| run.of_vm(name, what)).collect();
        let at = |n: usize| vms.iter().map(|values| values[n][0]).collect();
        over_time((0..run.points.len()).map(at).collect())
    };
    let chart = |title: &str, unit, stacked, parts, points| Chart {
        title: title.to_owned(),
        unit,
        stacked,
        parts,
        points,
    };
    let resident = of_vms(|vm| [vm.memory.iter().sum()]);
    let exits = of_vms(|vm| [vm.exits.iter().sum()]);
    let parts = owned(&["used", "shared, each frame once", "saved by sharing"]);
    vec![
        chart(
            "Memory",
            Unit::Bytes,
            false,
            parts,
            over_time(memory.collect()),
        ),
        chart(
            "Memory of VMs: resident",
            Unit::Bytes,
            false,
            owned(names),
            resident,
        ),
        chart(
            "CPUs busy",
            Unit::Plain,
            true,
            owned(&["busy"]),
            over_time(busy.collect()),
        ),
        chart(
            "Exits a second, by VM",
            Unit::Plain,
            true,
            owned(names),
            exits,
        ),
    ]
}

fn vm(run: &Run, name: &str) -> Vec<Chart> {
    let times = || run.points.iter().map(|point| point.at);
    let chart = |title: &str, unit, parts: &[&str], values: Vec<Vec<f64>>| Chart {
        title: title.to_owned(),
        unit,
        stacked: true,
        parts: owned(parts),
        points: times().zip(values).collect(),
    };
    let vecs = |values: Vec<[f64; 2]>| values.iter().map(|v| v.to_vec()).collect();
    let shares = run.of_vm(name, |vm| vm.shares);
    let shares = shares.iter().map(|shares| shares.to_vec()).collect();
    let (classes, exits) = exits(run, name);
    vec![
        chart(
            "CPU time, in percent of one CPU",
            Unit::Percent,
            &["run", "hypervisor", "steal", "idle"],
            shares,
        ),
        chart("Exits a second, by class", Unit::Plain, &classes, exits),
        chart(
            "Memory",
            Unit::Bytes,
            &["private", "shared"],
            vecs(run.of_vm(name, |vm| vm.memory)),
        ),
        chart(
            "Disk",
            Unit::Rate,
            &["read", "written"],
            vecs(run.of_vm(name, |vm| vm.disk)),
        ),
        chart(
            "Network",
            Unit::Rate,
            &["sent", "received"],
            vecs(run.of_vm(name, |vm| vm.net)),
        ),
    ]
}

/// The classes of exits that there were most of, and the others together.
fn exits(run: &Run, name: &str) -> (Vec<&'static str>, Vec<Vec<f64>>) {
    let all = run.of_vm(name, |vm| {
        std::array::from_fn::<f64, { EXIT_CLASSES.len() }, _>(|n| {
            vm.exits.get(n).copied().unwrap_or(0.0)
        })
    });
    let sums = mean(&all, 1.0);
    let mut order: Vec<usize> = (0..EXIT_CLASSES.len()).filter(|n| sums[*n] > 0.0).collect();
    order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
    let shown: Vec<usize> = order.iter().copied().take(CLASSES_MAX).collect();
    let rest = order.get(CLASSES_MAX..).unwrap_or_default();
    let mut names: Vec<_> = shown.iter().map(|n| EXIT_CLASSES[*n]).collect();
    if !rest.is_empty() {
        names.push("all others");
    }
    let values = |exits: &[f64; EXIT_CLASSES.len()]| {
        let mut values: Vec<f64> = shown.iter().map(|n| exits[*n]).collect();
        if !rest.is_empty() {
            values.push(rest.iter().map(|n| exits[*n]).sum());
        }
        values
    };
    (names, all.iter().map(values).collect())
}

#[cfg(test)]
mod tests {
    use super::{super::tests::line, *};

    #[test]
    fn page_has_all_plots_and_names_are_text() {
        let lines = [
            line(1, &[("a<b>", 50.0)]),
            line(3, &[("a<b>", 80.0), ("c", 1.0)]),
        ];
        let page = html(&Run::parse(&lines.join("\n")).unwrap());
        assert_eq!(page.matches("<svg").count(), 4 + 2 * 5);
        // The machine's: 3 of memory, 2 VMs, busy, 2 VMs; each VM's: 4, 8, 2, 2, 2.
        assert_eq!(page.matches("<path").count(), 8 + 2 * 18);
        assert!(page.contains("<h2>a&lt;b&gt;</h2>") && !page.contains("<b>"));
        assert!(!page.contains("http") && !page.contains("<script"));
        assert!(html(&Run::default()).contains("There are no samples"));
    }
}
