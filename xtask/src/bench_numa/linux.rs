//! Debian's programs in a Debian guest, which is told of no nodes: the ray tracer tachyon with a thread for
//! each vCPU and one scene, and as many at a time of the compiler proper of gcc, and of the solver minisat, each
//! with memory of its own. All is in the initial RAM disk, as QEMU's disks take as long as chance will have it.

use super::marks::{BEGIN, END, mark};
use super::{
    HEAD, NODES, TESTS, WAYS, all_ways, bar, directory, is_asked, machine, rows_of,
    workloads::Workload,
};
use crate::bench_sharing::plot::write_bars;
use crate::step::{Outcome, Step};
use std::{fmt::Write, fs, time::Duration};
use tests_boot::{archive, assets, vm::Vm};

const KERNEL: &str = "trixie-cloud";
/// How long a run may take, on a host that is busy.
const WORK_MAX: Duration = Duration::from_mins(30);
const SPHERES: u32 = 40_000;
/// Of the solver's problem. With 65,000 clauses it takes very much longer.
const VARIABLES: u64 = 20_000;

/// The programs: the workload, what `/work` is told, and KiB of each CPU's cache. Disco's Raytrace had 256.
const PROGRAMS: [(&str, &str, u32); 3] = [
    ("tachyon", "ray", 256),
    ("minisat", "solve", 1024),
    ("cc1", "compile", 1024),
];

/// What the guest does instead of `/init`. Region 2 of the results is the work.
const WORK: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
run() { program=$1; shift; /lib/ld-linux-aarch64.so.1 --library-path /lib /$program \"$@\"; }
/begin
case $(cat /proc/cmdline) in
*work=ray*) run tachyon /scene -numthreads 8 -o /tmp/1 >/dev/null ;;
*work=solve*)
    for n in 1 2 3 4 5 6 7 8; do run minisat -no-pre -verb=0 /problem /tmp/$n >/dev/null & done
    wait
    ;;
*)
    for n in 1 2 3 4 5 6 7 8; do run cc1 -quiet -O2 -D N=$n /source.c -o /tmp/$n & done
    wait
    ;;
esac
/end
echo \"underpin-guest: sum $(cat /tmp/? | sha256sum)\"
echo 'underpin-guest: work ok'
poweroff -f
";

/// The table.
///
/// # Errors
/// A run that fails, or ends with other results than the one before.
pub fn measure(step: &mut Step<'_>, only: &[String]) -> Outcome<Vec<Vec<String>>> {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    let mut bars = Vec::new();
    let mut all = Vec::new();
    let asked = PROGRAMS.iter().filter(|(name, ..)| is_asked(only, name));
    for &(name, work, cache_kib) in asked {
        let workload = Workload::named(name)?;
        let sizes = workload.sizes().into_iter();
        all.extend(sizes.map(|size| (workload.clone(), size, work, cache_kib)));
    }
    let initrd = directory()?.join("initrd");
    for (workload, size, work, cache_kib) in all {
        let files = files((work, size.count))?;
        let named = files
            .iter()
            .map(|(name, content)| (name.as_str(), content.clone()));
        archive::initrd(&initrd, KERNEL, &named.collect::<Vec<_>>())?;
        let args = format!("rdinit=/work work={work} numa_balancing=disable nokaslr {TESTS}");
        let title = workload.title(size);
        let runs = all_ways(step, &title, ("work ok", WORK_MAX), |line, near| {
            let vm = Vm::linux("guest", KERNEL, "poweroff")
                .initrd(&initrd.display().to_string())
                .args(&args)
                .memory("640MiB")
                .cpus(NODES);
            Ok((machine((NODES, "2G"), cache_kib, line, near), vm))
        })?;
        if !size.is_extra {
            bars.extend(WAYS.iter().zip(&runs).map(bar));
        }
        rows.extend(rows_of(&workload, size, &[runs]));
    }
    let title = "Milliseconds of the parallel clock: tachyon; eight minisat; eight cc1";
    write_bars(&directory()?.join("numa-linux.svg"), title, bars)?;
    Ok(rows)
}

/// The initial RAM disk's files, where this work has this size.
fn files((work, size): (&str, u32)) -> Outcome<Vec<(String, Vec<u8>)>> {
    let own = match work {
        "ray" => ("scene".to_owned(), scene(size).into()),
        "solve" => ("problem".to_owned(), problem(size).into()),
        _ => ("source.c".to_owned(), source(size).into()),
    };
    let programs = assets::cached("programs")?;
    let mut files = vec![
        ("work".to_owned(), WORK.into()),
        ("begin".to_owned(), mark(BEGIN, 2)),
        ("end".to_owned(), mark(END, 2)),
        own,
    ];
    for place in ["", "lib/"] {
        let directory = programs.join(place);
        let entries = fs::read_dir(&directory).map_err(|e| {
            format!(
                "cannot read {}: {e}; run scripts/setup",
                directory.display()
            )
        })?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_file() {
                let content = fs::read(&path).map_err(|e| format!("cannot read {name}: {e}"))?;
                files.push((format!("{place}{name}"), content));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Small spheres, always the same, at chance places, on a picture of so many points in width.
fn scene(width: u32) -> String {
    let head = format!("BEGIN_SCENE\nRESOLUTION {width} {}\n", width / 4 * 3);
    let mut text = head
        + "CAMERA\nPROJECTION PERSPECTIVE\nZOOM 1.0\n\
        ASPECTRATIO 1.0\nANTIALIASING 0\nRAYDEPTH 4\nCENTER 0 0 -14\nVIEWDIR 0 0 1\nUPDIR 0 1 0\n\
        END_CAMERA\nDIRECTIONAL_LIGHT DIRECTION 1 -1 1 COLOR 1 1 1\nBACKGROUND 0.1 0.1 0.2\n\
        TEXDEF T AMBIENT 0.2 DIFFUSE 0.6 SPECULAR 0.4 OPACITY 1.0 COLOR 1 0.5 0.2 TEXFUNC 0\n";
    let mut chance = chance();
    let mut next = || chance() as f64 / f64::from(1_u32 << 31);
    for _ in 0..SPHERES {
        let [x, y, z] = [(); 3].map(|()| next() * 16.0 - 8.0);
        let radius = 0.05 + next() * 0.05;
        // A string takes all.
        let _ = writeln!(text, "SPHERE CENTER {x:.4} {y:.4} {z:.4} RAD {radius:.4} T");
    }
    text + "END_SCENE\n"
}

/// Numbers below 2^31 in no order, always the same.
fn chance() -> impl FnMut() -> u64 {
    let mut state = 12_345_u64;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

/// Clauses of three of the variables each, all of which can be true at once.
fn problem(clauses: u32) -> String {
    let mut chance = chance();
    let mut text = format!("p cnf {VARIABLES} {clauses}\n");
    for _ in 0..clauses {
        for _ in 0..3 {
            let number = chance();
            let sign = if number & 1 == 0 { "-" } else { "" };
            // A string takes all.
            let _ = write!(text, "{sign}{} ", (number >> 1) % VARIABLES + 1);
        }
        text += "0\n";
    }
    text
}

/// Functions with loops and choices, which a compiler is busy with.
fn source(functions: u32) -> String {
    let function = |n: u32| {
        let before = n.saturating_sub(1);
        format!(
            "static int t{n}[64];\nint f{n}(int *a, int n) {{\n  int s = {n} + N;\n  for (int k = 0; k < n; k++) {{\n    \
             switch ((a[k] + s) & 7) {{\n    case 0: s += a[k] * {n}; break;\n    case 1: s ^= t{n}[k & 63] << 3; break;\n    \
             case 2: for (int j = 0; j < (k & 15); j++) t{n}[j] += s * j - a[j]; break;\n    \
             case 3: s = s / 7 + a[n - k - 1]; break;\n    case 4: s -= f{before}(a, n / 2); break;\n    \
             case 5: t{n}[s & 63] = a[k] % 5; break;\n    default: s += t{n}[(s >> 3) & 63] - k;\n    }}\n    \
             if (s > 100 * {n}) s -= a[(unsigned)s % n];\n  }}\n  return s;\n}}\n"
        )
    };
    (0..functions).map(function).collect()
}
