//! Records of parked VMs, which another image of the hypervisor wrote.

use super::{exits, gic, virtio};
use crate::input::Input;
use abi::state::{
    ByteSource, Device, Interrupts, Local, Private, ROOM, Reader, Sink as _, Source, Spis, Uart,
    Writer, kind,
};
use model_vgic::{Distributor, Redistributor};
use model_virtio::rng::Rng;
use model_vuart::Pl011;

/// As many as [`SPIS`] take.
const BANKS: usize = 2;
const SPIS: u32 = 64;

/// Whatever stands in a record is refused, or the model that takes it can go on from there.
pub fn state(data: &[u8]) {
    let _ = Reader::new(data);
    stream(data);
    let mut input = Input(data);
    let items = [
        (kind::SPIS, BANKS * size_of::<Spis>()),
        (kind::VCPU, size_of::<Interrupts>()),
        (kind::UART, size_of::<Uart>()),
        (kind::DEVICES, size_of::<Device>()),
    ];
    let mut room = vec![0; 4096];
    let mut writer = Writer::new(&mut room);
    for (kind, size) in items {
        let mut item = input.bytes(size).to_vec();
        item.resize(size, 0);
        writer.put(kind, item.as_slice());
    }
    assert!(writer.finish().is_some());
    let restored = restore(&room, input);
    assert!(restored.is_ok(), "{restored:?}");
}

/// A VM's state as bytes: whatever comes is items, or is refused, and no item is longer than there is room for.
fn stream(mut data: &[u8]) {
    let Ok(mut room) = <Box<[u8; ROOM]>>::try_from(vec![0; ROOM].into_boxed_slice()) else {
        return;
    };
    let input = |into: &mut [u8]| {
        let part = data.split_off(..into.len());
        part.map(|part| into.copy_from_slice(part)).is_some()
    };
    let Ok(mut source) = ByteSource::new(&mut room, input) else {
        return;
    };
    while let Some(kind) = source.peek() {
        if let Ok(runs) = source.runs(kind) {
            for (run, behind) in runs {
                assert_eq!(run.behind(), behind.len());
            }
        }
    }
}

fn restore(room: &[u8], mut input: Input<'_>) -> Result<(), abi::state::Unreadable> {
    let mut records = Reader::new(room)?;
    // Bits that are not kept are refused, and are in nearly all bytes.
    let kept = |mut interrupts: Interrupts| {
        interrupts.priority = interrupts.priority.map(|priority| priority & 0xf8);
        interrupts
    };
    let spis: Vec<Spis> = records.all::<Spis>(kind::SPIS)?.collect();
    let spis = spis.into_iter().map(|spis| Spis {
        interrupts: kept(spis.interrupts),
        ..spis
    });
    let mut interrupts = kept(records.one(kind::VCPU)?);
    interrupts.edge |= 0xffff;
    let uart = records.one(kind::UART)?;
    let mut device: Device = records.one(kind::DEVICES)?;
    records.end()?;

    let mut physical = [0; 32];
    physical[..input.0.len().min(32)].copy_from_slice(input.bytes(32));
    let private = Private {
        interrupts,
        local: Local {
            physical_active: input.u32().unwrap_or(0),
            physical,
            asleep: (input.u8().unwrap_or(0) & 1).into(),
        },
    };
    let mut distributor = Distributor::new(SPIS, 2);
    let mut redistributor = Redistributor::new(0, 2);
    if distributor.restore(spis, input.u8().unwrap_or(3).into())
        && redistributor.restore(&private, distributor.groups())
    {
        gic::go_on(distributor, redistributor, input);
    }
    if let Some(uart) = Pl011::of(&uart) {
        exits::go_on(uart, input);
    }
    device.registers.status &= 0xcf;
    device.registers.interrupt &= 3;
    device.reserved = 0;
    let mut rng = model_virtio::Transport::new(Rng::default());
    device.kind = 4;
    if rng.restore(&device) {
        virtio::rng_goes_on(rng, input);
    }
    let mut net = model_virtio::Transport::new(virtio::net_device(true, 1));
    device.kind = 1;
    if net.restore(&device) {
        virtio::net_goes_on(net, input);
    }
    Ok(())
}
