//! The regions of memory that a VM shares on purpose.

use super::{MEMORY_STEP, decode::Decoder, is_name, section::Section};
use crate::units;
use abi::{
    Text,
    bundle::{REGION_READ_ONLY, REGION_SIZE_MAX, REGIONS_MAX, RegionRecord},
};

const KEYS: [&str; 3] = ["name", "size", "access"];

/// A region of memory that a VM shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its name, by which others of the VM's group know it.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Whether the VM cannot write it.
    pub read_only: bool,
}

impl Decoder<'_> {
    /// All regions of the VM.
    pub fn regions(&self, root: &Section<'_, '_>) -> Vec<Region> {
        let sections = root.sections("regions", "regions", &KEYS);
        if let Some(extra) = sections.get(REGIONS_MAX) {
            let message = format!("{} regions are more than a VM may have", sections.len());
            let help = format!("use at most {REGIONS_MAX}");
            self.problems.add(extra.span(), message, &help);
        }
        let mut regions: Vec<Region> = Vec::new();
        for section in &sections {
            let Some(region) = self.region(section) else {
                continue;
            };
            if regions.iter().any(|other| other.name == region.name) {
                let message = format!("region '{}' is named twice", region.name);
                let help = "a VM has a region once, with \"rw\" or \"ro\"";
                self.problems.add(section.span(), message, help);
            }
            regions.push(region);
        }
        regions
    }

    fn region(&self, region: &Section<'_, '_>) -> Option<Region> {
        let read_only = region.choice("access", &["rw", "ro"]) == "ro";
        for (key, example) in [("name", "name = \"table\""), ("size", "size = \"64MiB\"")] {
            if region.has(key).is_none() {
                region.missing(key, &format!("add {example} or the like"));
            }
        }
        let size = region.size("size", "\"64MiB\"");
        let name = region.text("name", "\"table\"")?;
        if !is_name(name.value) || name.value.len() > 23 {
            let message = format!("'{}' cannot be a region's name", name.value);
            let help = "use 1 to 23 characters: small letters a to z, digits and hyphens";
            self.problems.add(&name.span, message, help);
        }
        let size = size?;
        let bytes = size.value;
        if bytes == 0 || !bytes.is_multiple_of(MEMORY_STEP) || bytes > REGION_SIZE_MAX {
            let message = format!("a region of {} is not possible", units::size(bytes));
            let most = units::size(REGION_SIZE_MAX);
            let help = format!("use a multiple of 2 MiB, at most {most}, the same in all VM files");
            self.problems.add(&size.span, message, &help);
        }
        Some(Region {
            name: name.value.to_owned(),
            size: bytes,
            read_only,
        })
    }
}

/// The regions as the hypervisor takes them.
pub fn records(regions: &[Region]) -> [RegionRecord; REGIONS_MAX] {
    let mut records = [RegionRecord::default(); REGIONS_MAX];
    for (record, region) in records.iter_mut().zip(regions) {
        *record = RegionRecord {
            name: Text::cut(&region.name),
            size: region.size,
            flags: if region.read_only {
                REGION_READ_ONLY
            } else {
                0
            },
            reserved: 0,
        };
    }
    records
}
