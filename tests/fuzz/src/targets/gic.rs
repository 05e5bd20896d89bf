//! A guest's accesses of its interrupt controller, with its list registers behind them.

use crate::input::Input;
use machine_fake::FakeListRegisters;
use model_vgic::{Distributor, ListFile, Redistributor, VcpuSet};

/// One vCPU of two: register accesses, lines that move, deliveries, departures.
pub fn gic(data: &[u8]) {
    go_on(
        Distributor::new(64, 2),
        Redistributor::new(0, 2),
        Input(data),
    );
}

/// The same from any state.
pub fn go_on(mut dist: Distributor, mut redist: Redistributor, mut input: Input<'_>) {
    let mut file = ListFile::new();
    let mut lrs = FakeListRegisters::new(4);
    while let (Some(what), Some(offset), Some(value)) = (input.u8(), input.u32(), input.u64()) {
        let size = 1 << (what >> 4 & 3);
        let intid = value as u32 & 0xff;
        match what % 10 {
            0 => drop(dist.read(offset & 0xffff, size, VcpuSet(u64::MAX))),
            1 => {
                let _ = dist.write(offset & 0xffff, size, value);
                redist.set_groups(dist.groups());
            }
            2 => drop(redist.read(offset & 0x1_ffff, size, true)),
            3 => drop(redist.write(offset & 0x1_ffff, size, value)),
            4 => drop(dist.set_level(intid, offset & 1 == 1)),
            5 => drop(redist.set_level(intid % 32, offset & 1 == 1)),
            6 => drop(redist.receive_sgi(intid, offset & 1 == 1)),
            7 => drop(lrs.guest_acknowledge()),
            8 => {
                file.save(&mut redist, Some(&mut dist), &mut lrs);
                file.load(&mut lrs);
            }
            _ => drop(file.publish(&mut redist, Some(&mut dist), &mut lrs)),
        }
        file.deliver(&mut redist, Some(&mut dist), &mut lrs);
    }
}
