//! VMs that come and go, beside CPUs whose TLBs hold whatever nobody flushed.
#![allow(clippy::unwrap_used)]

use model_vmid::{Tag, Vmids};
use proptest::prelude::*;
use std::collections::HashMap;

const CPUS: usize = 6;
const PAGES: u8 = 4;

/// A machine that does what the crate asks of EL2.
struct Machine<const N: usize> {
    vmids: Vmids<N>,
    /// The tag of each VM that lives.
    vms: HashMap<u32, Tag>,
    born: u32,
    cpus: [Cpu; CPUS],
}

#[derive(Default)]
struct Cpu {
    /// The VM that is loaded, and the number in `VTTBR_EL2`.
    loaded: Option<(u32, u16)>,
    /// (VMID, page) to the VM whose page it is.
    tlb: HashMap<(u16, u8), u32>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A VM begins.
    Begin,
    /// This CPU loads the VM with that place among those that live.
    Load(usize, prop::sample::Index),
    /// It has none loaded any more.
    Unload(usize),
    /// Its guest touches a page.
    Touch(usize, u8),
    /// A VM ends, unless it is loaded.
    End(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begin),
        8 => (0..CPUS, any::<prop::sample::Index>()).prop_map(|(cpu, vm)| Step::Load(cpu, vm)),
        3 => (0..CPUS).prop_map(Step::Unload),
        12 => (0..CPUS, 0..PAGES).prop_map(|(cpu, page)| Step::Touch(cpu, page)),
        2 => any::<prop::sample::Index>().prop_map(Step::End),
    ]
}

impl<const N: usize> Machine<N> {
    fn new() -> Self {
        let cpus = std::array::from_fn(|_| Cpu::default());
        Self {
            vmids: Vmids::empty(),
            vms: HashMap::new(),
            born: 0,
            cpus,
        }
    }

    fn pick(&self, index: prop::sample::Index) -> Option<u32> {
        let mut vms: Vec<u32> = self.vms.keys().copied().collect();
        vms.sort_unstable();
        (!vms.is_empty()).then(|| *index.get(&vms))
    }

    fn is_loaded(&self, vm: u32) -> bool {
        self.cpus
            .iter()
            .any(|cpu| cpu.loaded.is_some_and(|(loaded, _)| loaded == vm))
    }

    fn begin(&mut self) {
        if let Some(tag) = self.vmids.take() {
            self.vms.insert(self.born, tag);
            self.born += 1;
        } else {
            assert_eq!(self.vms.len(), N - 1, "there is a number");
        }
    }

    fn load(&mut self, cpu: usize, vm: u32) {
        self.cpus[cpu].loaded = Some((vm, self.vms[&vm].vmid()));
    }

    fn touch(&mut self, cpu: usize, page: u8) {
        let Cpu { loaded, tlb } = &mut self.cpus[cpu];
        if let Some((vm, vmid)) = *loaded {
            assert_eq!(
                *tlb.entry((vmid, page)).or_insert(vm),
                vm,
                "another VM's page"
            );
        }
    }

    fn end(&mut self, vm: u32) {
        if self.is_loaded(vm) {
            return;
        }
        let tag = self.vms.remove(&vm).unwrap();
        for cpu in &mut self.cpus {
            cpu.tlb.retain(|&(vmid, _), _| vmid != tag.vmid());
        }
        self.vmids.release(tag);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin => self.begin(),
            Step::Load(cpu, index) => {
                if let Some(vm) = self.pick(index) {
                    self.load(cpu, vm);
                }
            }
            Step::Unload(cpu) => self.cpus[cpu].loaded = None,
            Step::Touch(cpu, page) => self.touch(cpu, page),
            Step::End(index) => {
                if let Some(vm) = self.pick(index) {
                    self.end(vm);
                }
            }
        }
        self.check();
    }

    /// Each loaded VM runs under its one number, which nobody else has.
    fn check(&self) {
        let mut holders = HashMap::new();
        for (vm, vmid) in self.cpus.iter().filter_map(|cpu| cpu.loaded) {
            assert_ne!(vmid, 0);
            let tag = self.vms[&vm];
            assert!(self.vmids.is_valid(tag));
            assert_eq!(tag.vmid(), vmid, "two numbers for one VM");
            assert_eq!(
                *holders.entry(vmid).or_insert(vm),
                vm,
                "one number for two VMs"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_tlb_serves_one_vms_entry_to_another(steps in prop::collection::vec(step(), 0..400)) {
        let mut machine = Machine::<16>::new();
        for step in steps {
            machine.step(step);
        }
    }
}

#[test]
fn vms_that_come_and_go_never_run_out_of_numbers() {
    let mut machine = Machine::<16>::new();
    for vm in 0..5000 {
        machine.step(Step::Begin);
        machine.load(0, vm);
        machine.touch(0, 0);
        machine.step(Step::Unload(0));
        machine.end(vm);
    }
    assert_eq!(machine.born, 5000);
}
