//! A GIC as the architecture describes it, one plain record per interrupt.

/// The highest `intid` plus one.
pub const INTIDS: usize = 64;

#[derive(Clone, Debug)]
pub struct Interrupt {
    pub enabled: bool,
    pub group1: bool,
    pub edge: bool,
    pub latch: bool,
    pub line: bool,
    /// The vCPU on which it is active.
    pub active_on: Option<usize>,
    /// Active, whether or not on a vCPU that exists.
    pub active: bool,
    /// Active by a write of ISACTIVER: no vCPU has taken it, so any may hold it.
    by_hand: bool,
    pub priority: u8,
    pub target: Option<usize>,
}

impl Interrupt {
    pub fn pending(&self) -> bool {
        self.latch || self.line && !self.edge
    }

    /// Whether `vcpu` may be the one that holds it.
    pub fn may_be_active_on(&self, vcpu: usize) -> bool {
        self.active && (self.by_hand || self.active_on == Some(vcpu))
    }

    pub fn set_line(&mut self, high: bool) {
        self.latch |= self.edge && high && !self.line;
        self.line = high;
    }
}

/// The interrupts of each vCPU; of those from 32 on, only vCPU 0's are used.
pub struct Reference {
    pub interrupts: Vec<Vec<Interrupt>>,
    pub groups: [bool; 2],
}

impl Reference {
    pub fn new(vcpus: usize) -> Self {
        let interrupt = |vcpu: usize, intid: usize| Interrupt {
            enabled: false,
            group1: false,
            edge: intid < 16,
            latch: false,
            line: false,
            active_on: None,
            active: false,
            by_hand: false,
            priority: 0,
            target: Some(if intid < 32 { vcpu } else { 0 }),
        };
        let interrupts = (0..vcpus)
            .map(|vcpu| (0..INTIDS).map(|intid| interrupt(vcpu, intid)).collect())
            .collect();
        Self {
            interrupts,
            groups: [false; 2],
        }
    }

    /// Interrupt `intid` as `vcpu` sees it.
    pub fn at(&mut self, vcpu: usize, intid: usize) -> &mut Interrupt {
        &mut self.interrupts[if intid < 32 { vcpu } else { 0 }][intid]
    }

    /// What `vcpu` could be given now: interrupt and priority.
    pub fn candidates(&mut self, vcpu: usize) -> Vec<(usize, u8)> {
        let groups = self.groups;
        (0..INTIDS)
            .filter_map(|intid| {
                let interrupt = self.at(vcpu, intid);
                let goes = interrupt.enabled && groups[usize::from(interrupt.group1)];
                let here = interrupt.target == Some(vcpu) && !interrupt.active;
                (goes && here && interrupt.pending()).then_some((intid, interrupt.priority))
            })
            .collect()
    }

    /// How many interrupts are, or may be, active on `vcpu`.
    pub fn active_count(&mut self, vcpu: usize) -> usize {
        (0..INTIDS)
            .filter(|&intid| self.at(vcpu, intid).may_be_active_on(vcpu))
            .count()
    }

    pub fn set_active(&mut self, vcpu: usize, intid: usize) {
        let interrupt = self.at(vcpu, intid);
        if !interrupt.active {
            interrupt.active_on = interrupt.target;
            interrupt.active = true;
            interrupt.by_hand = true;
        }
    }

    pub fn clear_active(&mut self, vcpu: usize, intid: usize) {
        let interrupt = self.at(vcpu, intid);
        interrupt.active = false;
        interrupt.active_on = None;
    }

    pub fn acknowledge(&mut self, vcpu: usize, intid: usize) {
        let interrupt = self.at(vcpu, intid);
        interrupt.latch = false;
        interrupt.active_on = Some(vcpu);
        interrupt.active = true;
        interrupt.by_hand = false;
    }
}
