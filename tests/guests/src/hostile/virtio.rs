//! Malformed virtqueues on every virtio-mmio device (virtio 1.2, sections 2.7 and 4.2). What the
//! device does is not judged: only that this guest, and the machine, live on.

use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, check};
use machine_bare::{println, timer};
use tests_guests::malformed::{SHAPES, SIZES, Shape, present, present_rings, strange_registers};
use tests_guests::virtio::{
    BUFFERS, DEVICE_ID, NOWHERE, QUEUE_MEMORY, QUEUE_NOTIFY, devices, queues,
};

/// The kind of device that is a disk.
const DISK: u32 = 2;

/// Every shape and size on every queue of every device, and rings where there is no memory.
pub fn malformed(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch().part(0, QUEUE_MEMORY);
    let mut tried = 0;
    for device in devices(machine) {
        println!(
            "hostile: device {} at {:#x}",
            device.read32(DEVICE_ID),
            device.base()
        );
        for queue in 0..queues(device) {
            for shape in &SHAPES {
                tried += 1;
                println!("hostile: queue {queue}: {}", shape.name);
                present(device, queue, shape, &memory)?;
            }
            for size in SIZES {
                tried += 1;
                let shape = Shape {
                    size,
                    ..Shape::chain("size", &[(BUFFERS, 16, 0, 0)])
                };
                present(device, queue, &shape, &memory)?;
            }
            for base in [NOWHERE, !0xfff, memory.base() + 1] {
                tried += 1;
                present_rings(device, queue, base)?;
            }
        }
        strange_registers(device)?;
    }
    println!("hostile: {tried} malformed queues");
    check(tried != 0, "no virtio-mmio device of version 2")
}

/// Shows a disk a ring that leads in a circle.
pub fn break_disk(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch().part(0, QUEUE_MEMORY);
    let disk = devices(machine).find(|device| device.read32(DEVICE_ID) == DISK);
    match disk {
        Some(disk) => present(disk, 0, &SHAPES[0], &memory),
        None => check(false, "no disk"),
    }
}

/// Notifications of all queues, also of those that are not there.
pub fn notify_storm(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch().part(0, QUEUE_MEMORY);
    let end = timer::now() + machine.number("seconds", 1).min(1 << 20) * timer::frequency();
    let mut times = 0;
    for device in devices(machine) {
        present(device, 0, &SHAPES[16], &memory)?;
    }
    while timer::now() < end {
        for device in devices(machine) {
            device.write32(QUEUE_NOTIFY, times % 5);
            times += 1;
        }
        if times == 0 {
            return check(false, "no virtio-mmio device of version 2");
        }
    }
    println!("hostile: {times} notifications");
    Ok(())
}
