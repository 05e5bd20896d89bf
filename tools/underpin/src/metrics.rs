//! A sample of a machine in Prometheus' text format, version 0.0.4.
//!
//! Times are seconds, amounts bytes; counters end in `_total` and begin at zero when their VM
//! starts. Names of VMs are label values: any text, escaped.

mod cpus;
mod exposition;
mod hosts;

use crate::watch::{Sample, VmSample};
use abi::control::{NodeStatus, VERSION, state};
use exposition::{
    Exposition,
    Kind::{Counter, Gauge, Histogram},
    Value, histogram, series,
};
use tools_abi::status::{MemStatus, VcpuStatus, VmStatus};
use tools_abi::{EXIT_CLASSES, MEM_EVENTS, NET_DROPS, latency_bound_ns};

/// What a scraper is told that the text is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A VM's states.
const STATES: [(u32, &str); 5] = [
    (state::DEFINED, "defined"),
    (state::RUNNING, "running"),
    (state::PAUSED, "paused"),
    (state::ENDED, "ended"),
    (state::ENDING, "ending"),
];

/// A name, what it is, and where in `T` its value is found.
type Row<T> = (&'static str, &'static str, fn(&T) -> u64);

/// All that is known of a machine.
pub fn text(sample: &Sample, host: Option<&str>) -> String {
    let mut out = Exposition::of_host(host);
    build(&mut out);
    machine(&mut out, sample);
    cpus::write(&mut out, &sample.cpus);
    nodes(&mut out, &sample.nodes);
    hosts::write(&mut out, &sample.hosts);
    vms(&mut out, &sample.vms);
    vm_memory(&mut out, &sample.vms);
    vcpus(&mut out, &sample.vms);
    out.into_text()
}

fn build(out: &mut Exposition) {
    let protocol = VERSION.to_string();
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("protocol", &protocol),
    ];
    out.family(
        "underpin_build_info",
        Gauge,
        "The command that asked, and the control protocol's version.",
        [series(&labels, Value::Count(1))],
    );
}

fn machine(out: &mut Exposition, sample: &Sample) {
    let machine = &sample.machine;
    let uptime = Value::Nanoseconds(machine.uptime_ns);
    out.one("underpin_uptime_seconds", "Time since EL2 started.", uptime);
    let kinds = ["received", "sent", "lost"].iter().zip(machine.card_frames);
    out.family(
        "underpin_card_frames_total",
        Counter,
        "Frames by the machine's network card, or by underpin0 beside OS-0; those lost found no room.",
        kinds.map(|(kind, n)| series(&[("kind", kind)], Value::Count(n))),
    );
    let cpus = Value::Count(machine.cpus.into());
    out.one("underpin_cpus", "pCPUs that run.", cpus);
    machine_sizes(out, sample);
}

fn machine_sizes(out: &mut Exposition, sample: &Sample) {
    let (machine, memory) = (&sample.machine, &sample.memory);
    for (name, help, bytes) in [
        ("memory", "The machine's RAM.", machine.memory),
        ("memory_free", "RAM that nobody uses.", machine.memory_free),
        ("image", "EL2's image with its zeroed data.", machine.image),
        (
            "frame_table",
            "The table of all frames.",
            machine.frame_table,
        ),
        ("heap", "EL2's heap in use.", machine.heap),
        (
            "bundle",
            "The bundle that the machine booted from.",
            machine.bundle,
        ),
        (
            "memory_managed",
            "Memory that pools manage.",
            memory.managed,
        ),
        (
            "memory_reserve",
            "Memory kept for breaking what is shared.",
            memory.reserve,
        ),
        (
            "memory_shared",
            "Frames that VMs share, each counted once.",
            memory.shared,
        ),
        (
            "memory_saved",
            "What VMs would need more if nothing were shared.",
            memory.saved,
        ),
        (
            "memory_cached",
            "Disk blocks kept though no VM uses them now.",
            memory.cached,
        ),
        (
            "memory_images",
            "The bundle's pages that VMs may use.",
            memory.images,
        ),
        (
            "memory_bases",
            "Sum of the bases of the VMs that run.",
            memory.bases,
        ),
        (
            "memory_pool",
            "What was saved and waits for a VM to start with it.",
            memory.pool,
        ),
        (
            "memory_records",
            "Records of who uses what.",
            memory.records,
        ),
    ] {
        out.one(&format!("underpin_{name}_bytes"), help, Value::Count(bytes));
    }
}

fn nodes(out: &mut Exposition, nodes: &[NodeStatus]) {
    let gauges: [Row<NodeStatus>; 5] = [
        ("cpus", "pCPUs of the node.", |node| node.cpus.into()),
        ("vcpus", "vCPUs that the node runs or queues.", |node| {
            node.vcpus.into()
        }),
        (
            "memory_bytes",
            "Memory of the node that pools manage.",
            |node| node.memory,
        ),
        ("memory_free_bytes", "Free memory of the node.", |node| {
            node.free
        }),
        (
            "memory_zeroed_bytes",
            "Free memory known to be zero.",
            |node| node.zeroed,
        ),
    ];
    let numbers: Vec<String> = (0..nodes.len()).map(|n| n.to_string()).collect();
    for (name, help, value) in gauges {
        let nodes = numbers.iter().zip(nodes);
        let all = nodes.map(|(n, node)| series(&[("node", n)], Value::Count(value(node))));
        out.family(&format!("underpin_node_{name}"), Gauge, help, all);
    }
    let given = numbers.iter().zip(nodes).flat_map(|(n, node)| {
        [("local", node.local), ("remote", node.remote)]
            .map(|(to, frames)| series(&[("node", n), ("to", to)], Value::Count(frames)))
    });
    let help = "Frames given to those who run on the node, and elsewhere.";
    out.family("underpin_node_frames_given_total", Counter, help, given);
    let zeroed = numbers.iter().zip(nodes);
    out.family(
        "underpin_node_zeroed_frames_given_total",
        Counter,
        "Frames given that were known to be zero.",
        zeroed.map(|(n, node)| series(&[("node", n)], Value::Count(node.zeroed_given))),
    );
}

fn vms(out: &mut Exposition, vms: &[VmSample]) {
    out.family(
        "underpin_vm_info",
        Gauge,
        "A VM, and the kernel it boots.",
        vms.iter().map(|vm| {
            let kernel = vm.status.kernel.to_string();
            series(&[("vm", &vm.name), ("kernel", &kernel)], Value::Count(1))
        }),
    );
    out.family(
        "underpin_vm_state",
        Gauge,
        "1 for the state that the VM is in, 0 for the others.",
        vms.iter().flat_map(|vm| {
            STATES.map(|(number, state)| {
                let is = Value::Count((vm.status.state == number).into());
                series(&[("vm", &vm.name), ("state", state)], is)
            })
        }),
    );
    vm_amounts(out, vms);
    vm_kinds(out, vms);
}

/// What a VM has, what it did, and where its time went, each in one number.
fn vm_amounts(out: &mut Exposition, vms: &[VmSample]) {
    let gauges: [Row<VmStatus>; 8] = [
        ("vcpus", "vCPUs of the VM.", |vm| vm.vcpus.into()),
        ("weight", "Share of CPU time against other VMs.", |vm| {
            vm.weight.into()
        }),
        ("memory_bytes", "Memory that the VM was given.", |vm| {
            vm.memory
        }),
        (
            "memory_touched_bytes",
            "Memory with a frame behind it.",
            |vm| vm.touched,
        ),
        (
            "memory_overhead_bytes",
            "Tables and bookkeeping for the VM.",
            |vm| vm.overhead,
        ),
        (
            "overlay_bytes",
            "Memory of overlays of the VM's disks.",
            |vm| vm.overlay,
        ),
        (
            "overlay_stored_bytes",
            "Overlays of the VM's disks on partitions.",
            |vm| vm.stored,
        ),
        (
            "first_node",
            "The node where the VM's memory begins.",
            |vm| vm.node.into(),
        ),
    ];
    each_vm(out, vms, Gauge, "", &gauges, Value::Count);
    vm_counters(out, vms);
    vm_times(out, vms);
}

fn vm_counters(out: &mut Exposition, vms: &[VmSample]) {
    let counters: [Row<VmStatus>; 10] = [
        ("starts", "Starts of the VM.", |vm| vm.starts.into()),
        ("disk_read_bytes", "Bytes read from the VM's disks.", |vm| {
            vm.disk_bytes[0]
        }),
        (
            "disk_errors",
            "Disk requests that failed on the machine's side.",
            |vm| vm.disk_errors,
        ),
        (
            "disk_written_bytes",
            "Bytes written to the VM's disks.",
            |vm| vm.disk_bytes[1],
        ),
        ("net_sent_frames", "Frames that the VM sent.", |vm| {
            vm.net_frames[0]
        }),
        (
            "net_received_frames",
            "Frames that the VM received.",
            |vm| vm.net_frames[1],
        ),
        (
            "net_sent_bytes",
            "Bytes in frames that the VM sent.",
            |vm| vm.net_bytes[0],
        ),
        (
            "net_received_bytes",
            "Bytes in frames that the VM received.",
            |vm| vm.net_bytes[1],
        ),
        (
            "console_written_bytes",
            "Bytes written to the VM's console.",
            |vm| vm.console[0],
        ),
        (
            "console_dropped_bytes",
            "Bytes written to the VM's console and dropped.",
            |vm| vm.console[1],
        ),
    ];
    each_vm(out, vms, Counter, "_total", &counters, Value::Count);
}

/// Where the time of a VM's vCPUs went.
fn vm_times(out: &mut Exposition, vms: &[VmSample]) {
    let times: [Row<VmStatus>; 4] = [
        ("run", "Time that vCPUs ran.", |vm| vm.run_ns),
        (
            "steal",
            "Time that vCPUs could have run and did not.",
            |vm| vm.steal_ns,
        ),
        ("hypervisor", "Time that EL2 worked for the VM.", |vm| {
            vm.hypervisor_ns
        }),
        ("idle", "Time that vCPUs had nothing to do.", |vm| {
            vm.idle_ns
        }),
    ];
    let to = Value::Nanoseconds;
    each_vm(out, vms, Counter, "_seconds_total", &times, to);
}

/// A family `underpin_vm_NAME` and an ending for each row, with a series for each VM.
fn each_vm(
    out: &mut Exposition,
    vms: &[VmSample],
    kind: exposition::Kind,
    ending: &str,
    rows: &[Row<VmStatus>],
    to: fn(u64) -> Value,
) {
    for (name, help, value) in rows {
        let all = vms.iter().map(|vm| of_vm(vm, to(value(&vm.status))));
        out.family(&format!("underpin_vm_{name}{ending}"), kind, help, all);
    }
}

/// What is counted of VMs by kind.
fn vm_kinds(out: &mut Exposition, vms: &[VmSample]) {
    let help = "Exits to EL2 by class.";
    by_kind(out, "exits", "class", help, vms, |vm| {
        Some((&EXIT_CLASSES, &vm.status.exits))
    });
    exit_times(out, vms);
    let help = "Disk requests; those refused are of no other kind.";
    by_kind(out, "disk_requests", "kind", help, vms, |vm| {
        Some((&["read", "write", "flush", "refused"], &vm.status.disk))
    });
    let help = "Frames of or for the VM that went nowhere.";
    by_kind(out, "net_dropped_frames", "why", help, vms, |vm| {
        Some((&NET_DROPS, &vm.status.net_drops))
    });
    let links = vms.iter().flat_map(|vm| {
        let links = tools_abi::links(&vm.status).enumerate();
        let one = |(device, up): (usize, bool)| {
            let labels = [("vm", &*vm.name), ("device", &device.to_string())];
            series(&labels, Value::Count(up.into()))
        };
        links.map(one).collect::<Vec<_>>()
    });
    let help = "1 where the link of the VM's network device is up, 0 where it is down.";
    out.family("underpin_vm_net_link_up", Gauge, help, links);
    let requests = vms.iter().flat_map(|vm| {
        let (counts, sum) = (&vm.status.disk_latency, vm.status.disk_ns);
        histogram(&[("vm", &vm.name)], counts, latency_bound_ns, sum)
    });
    let name = "underpin_vm_disk_request_duration_seconds";
    let help = "How long disk requests took, from the ring and back to it.";
    out.family(name, Histogram, help, requests);
    let frames = vms.iter().flat_map(|vm| {
        let (counts, sum) = (&vm.status.net_latency, vm.status.net_ns);
        histogram(&[("vm", &vm.name)], counts, latency_bound_ns, sum)
    });
    let name = "underpin_vm_net_frame_duration_seconds";
    let help = "How long frames that the VM sent took, from its ring to where they go.";
    out.family(name, Histogram, help, frames);
    let help = "What a guest did wrong and EL2 went on after.";
    by_kind(out, "oddities", "kind", help, vms, |vm| {
        Some((&["register", "mmio", "queue", "call"], &vm.status.oddities))
    });
    let help = "How often TLBs were told of changes of a VM's translation.";
    by_kind(out, "invalidations", "reach", help, vms, |vm| {
        Some((&["one-cpu", "all-cpus"], &vm.status.invalidations))
    });
    let help = "What happened to shared memory.";
    by_kind(out, "memory_events", "event", help, vms, |vm| {
        Some((&MEM_EVENTS, &vm.memory.as_ref()?.events))
    });
}

/// The time that exits took, of each VM, and of each vCPU with their number.
fn exit_times(out: &mut Exposition, vms: &[VmSample]) {
    let all = vms.iter().flat_map(|vm| {
        let classes = EXIT_CLASSES.iter().zip(vm.status.exit_ns);
        let one = |(class, ns): (&&str, u64)| {
            series(
                &[("vm", &vm.name), ("class", class)],
                Value::Nanoseconds(ns),
            )
        };
        classes.map(one).collect::<Vec<_>>()
    });
    let help = "Time at EL2 that exits took, by class.";
    out.family("underpin_vm_exit_seconds_total", Counter, help, all);
    let of_vcpus = |value: fn(&VcpuStatus, usize) -> Value| {
        vms.iter().flat_map(move |vm| {
            let vcpus = vm.vcpus.iter().flatten().enumerate();
            vcpus.flat_map(move |(n, vcpu)| {
                let n = n.to_string();
                let classes = EXIT_CLASSES.iter().enumerate();
                classes
                    .map(|(class, name)| {
                        let labels = [("vm", &*vm.name), ("vcpu", &*n), ("class", name)];
                        series(&labels, value(vcpu, class))
                    })
                    .collect::<Vec<_>>()
            })
        })
    };
    let counts = of_vcpus(|vcpu, class| Value::Count(vcpu.exits[class]));
    let help = "Exits of the vCPU to EL2, by class.";
    out.family("underpin_vcpu_exits_total", Counter, help, counts);
    let times = of_vcpus(|vcpu, class| Value::Nanoseconds(vcpu.exit_ns[class]));
    let help = "Time at EL2 that exits of the vCPU took, by class.";
    out.family("underpin_vcpu_exit_seconds_total", Counter, help, times);
}

/// A counter `underpin_vm_NAME_total` with a series for each VM and each of its kinds.
fn by_kind(
    out: &mut Exposition,
    name: &str,
    label: &'static str,
    help: &str,
    vms: &[VmSample],
    counts: impl Fn(&VmSample) -> Option<(&[&'static str], &[u64])>,
) {
    let all = vms.iter().flat_map(|vm| {
        let (kinds, counts) = counts(vm).unwrap_or_default();
        let pairs = kinds.iter().zip(counts);
        let one =
            |(kind, n): (&&str, &u64)| series(&[("vm", &vm.name), (label, kind)], Value::Count(*n));
        pairs.map(one).collect::<Vec<_>>()
    });
    out.family(&format!("underpin_vm_{name}_total"), Counter, help, all);
}

fn vm_memory(out: &mut Exposition, vms: &[VmSample]) {
    let running = || vms.iter().filter_map(|vm| Some((vm, vm.memory.as_ref()?)));
    let gauges: [Row<MemStatus>; 12] = [
        ("base", "Memory that the VM is sure of.", |vm| vm.base),
        ("max", "The most memory that the VM can have.", |vm| vm.max),
        ("limit", "The most memory that the VM may have now.", |vm| {
            vm.limit
        }),
        (
            "target",
            "Memory that the VM's guest was asked to keep to.",
            |vm| vm.target,
        ),
        (
            "resident",
            "The VM's memory with a frame behind it.",
            |vm| vm.resident,
        ),
        ("private", "The VM's memory in frames of its own.", |vm| {
            vm.private
        }),
        (
            "shared",
            "The VM's memory in frames that others use or could use.",
            |vm| vm.shared,
        ),
        (
            "charge",
            "Memory that the VM pays for, its part of what is shared.",
            |vm| vm.charge,
        ),
        (
            "entitlement",
            "Memory that sharing saves on the VM's account.",
            |vm| vm.entitlement,
        ),
        (
            "drawn",
            "Memory of its entitlement that the VM was given beyond its base.",
            |vm| vm.drawn,
        ),
        (
            "owed",
            "Memory that the VM must give back before it may go on.",
            |vm| vm.owed,
        ),
        ("tables", "The VM's translation tables and maps.", |vm| {
            vm.tables
        }),
    ];
    for (name, help, value) in gauges {
        let all = running().map(|(vm, memory)| of_vm(vm, Value::Count(value(memory))));
        out.family(
            &format!("underpin_vm_memory_{name}_bytes"),
            Gauge,
            help,
            all,
        );
    }
    vm_balance(out, vms);
}

fn vm_balance(out: &mut Exposition, vms: &[VmSample]) {
    let running = || vms.iter().filter_map(|vm| Some((vm, vm.memory.as_ref()?)));
    out.family(
        "underpin_vm_memory_balance_bytes",
        Gauge,
        "The VM's entitlement less what it has drawn of it.",
        running().map(|(vm, memory)| of_vm(vm, Value::Signed(memory.balance))),
    );
    out.family(
        "underpin_vm_translation_entries",
        Gauge,
        "Entries of the VM's translation, by size.",
        running().flat_map(|(vm, memory)| {
            [("2MiB", memory.blocks), ("4KiB", memory.pages)]
                .map(|(size, n)| series(&[("vm", &vm.name), ("size", size)], Value::Count(n)))
        }),
    );
}

fn vcpus(out: &mut Exposition, vms: &[VmSample]) {
    let times: [Row<VcpuStatus>; 4] = [
        ("run", "Time that the vCPU ran.", |vcpu| vcpu.run_ns),
        (
            "steal",
            "Time that the vCPU could have run and did not.",
            |vcpu| vcpu.steal_ns,
        ),
        ("hypervisor", "Time that EL2 worked for the vCPU.", |vcpu| {
            vcpu.hypervisor_ns
        }),
        ("idle", "Time that the vCPU had nothing to do.", |vcpu| {
            vcpu.idle_ns
        }),
    ];
    for (name, help, value) in times {
        let all = each_vcpu(vms, |vcpu| Value::Nanoseconds(value(vcpu)));
        out.family(
            &format!("underpin_vcpu_{name}_seconds_total"),
            Counter,
            help,
            all,
        );
    }
    let moves = each_vcpu(vms, |vcpu| Value::Count(vcpu.migrations));
    let help = "How often the vCPU changed from one pCPU to another.";
    out.family("underpin_vcpu_migrations_total", Counter, help, moves);
}

fn each_vcpu(
    vms: &[VmSample],
    value: impl Fn(&VcpuStatus) -> Value,
) -> impl Iterator<Item = exposition::Series> {
    vms.iter().flat_map(move |vm| {
        let vcpus = vm.vcpus.iter().flatten().enumerate();
        let one = |(n, vcpu): (usize, &VcpuStatus)| {
            let n = n.to_string();
            series(&[("vm", &vm.name), ("vcpu", &n)], value(vcpu))
        };
        vcpus.map(one).collect::<Vec<_>>()
    })
}

fn of_vm(vm: &VmSample, value: Value) -> exposition::Series {
    series(&[("vm", &vm.name)], value)
}
