//! The disks of a VM, as its description has them.

use crate::devices::disk::{Base, CowDisk, Image};
use crate::devices::{Backing, Block, Near};
use crate::drivers::Partition;
use crate::drivers::disk::{self, Unavailable};
use crate::life::create::{impossible, wrong_entry};
use crate::machine;
use crate::memory::frames;
use abi::bundle::{DISK_NEVER_SHARE, DiskRecord, NO_ENTRY, disk_mode};
use abi::{Text, control::code};
use model_addr::NodeId;
use model_control::Refusal;
use model_disk::Store as _;
use model_frame_table::Owner;
use model_virtio::blk::{Blk, BlockSize, Options, SECTOR_SIZE};

pub(super) fn block(
    disk: &DiskRecord,
    window: usize,
    home: NodeId,
    user: Owner,
    share: bool,
) -> Result<Block, Refusal> {
    let block_size = match disk.block_size {
        512 => BlockSize::B512,
        4096 => BlockSize::B4096,
        other => {
            let what = format_args!("block size is {other} bytes; it must be 512 or 4096");
            return Err(impossible(other.into(), what));
        }
    };
    if disk.flags & !DISK_NEVER_SHARE != 0 {
        let what = format_args!("a disk with unknown flags {:#x}", disk.flags);
        return Err(impossible(disk.flags.into(), what));
    }
    let (backing, bytes) = match disk.mode {
        disk_mode::COW => {
            let base = match disk.entry {
                NO_ENTRY => Base::Partition(partition(disk.partition, true)?),
                entry => Base::Image(image(entry)?),
            };
            let or = |said: u64, other| if said == 0 { other } else { said };
            let size = or(disk.size, base.size());
            let limit = or(disk.overlay_max, size);
            let store = store(disk, limit)?;
            let room = store.as_ref().map_or(limit, |store| store.size());
            let near = (Near(home), frames::Tables::new(home, 0));
            let cow = CowDisk::new((base, store), (size, limit.min(room)), near, user, share)
                .map_err(|error| impossible(size, format_args!("{error}")))?;
            (Backing::Cow(cow), size)
        }
        disk_mode::READ_ONLY => {
            let base = image(disk.entry)?;
            let size = base.0.size();
            (Backing::ReadOnly(base, share), size)
        }
        disk_mode::PERSISTENT => {
            let partition = partition(disk.partition, false)?;
            let bytes = partition.sectors() * SECTOR_SIZE;
            (Backing::Partition(partition), bytes)
        }
        other => {
            let what = format_args!("a disk of unknown kind {other}");
            return Err(impossible(other.into(), what));
        }
    };
    let options = Options {
        capacity: bytes / SECTOR_SIZE,
        block_size,
        read_only: disk.mode == disk_mode::READ_ONLY,
        discard: disk.mode == disk_mode::COW,
        id: *b"underpin\0\0\0\0\0\0\0\0\0\0\0\0",
    };
    Ok(Block::new(Blk::new(options), window, backing, disk.limit))
}

/// The partition that a disk's overlay of so many bytes is on, if it is on one.
fn store(disk: &DiskRecord, limit: u64) -> Result<Option<Partition>, Refusal> {
    let name = disk.overlay_on;
    if name.is_empty() {
        return Ok(None);
    }
    let partition = scratch(name)?;
    let size = partition.size();
    if disk.overlay_max > size {
        let (has, wanted) = (size >> 10, limit >> 10);
        let what =
            format_args!("partition {name} has {has} KiB, too few for an overlay of {wanted}");
        return Err(impossible(size, what));
    }
    Ok(Some(partition))
}

/// A partition that is overwritten as EL2 likes.
pub(super) fn scratch(name: Text<40>) -> Result<Partition, Refusal> {
    let partition = partition(name, false)?;
    if partition.is_scratch() {
        return Ok(partition);
    }
    let what = format_args!(
        "partition {name} is not marked for overlays and swap, which overwrite what it holds (underpin explain impossible)"
    );
    Err(impossible(0, what))
}

fn partition(name: Text<40>, is_base: bool) -> Result<Partition, Refusal> {
    let taken = disk::take(name.as_str().unwrap_or_default(), is_base);
    taken.map_err(|error| match error {
        Unavailable::Missing => {
            let what = format_args!("no disk of the machine has a partition named {name}");
            impossible(0, what)
        }
        Unavailable::Taken => {
            let what = format_args!("partition {name} is in use by another VM");
            Refusal::new(code::BUSY, 0, what)
        }
    })
}

fn image(entry: u32) -> Result<Image, Refusal> {
    let bundle = machine::get().bundle.as_ref();
    bundle
        .and_then(|bundle| bundle.image(entry).map(Image))
        .ok_or_else(|| wrong_entry(entry))
}
