//! The fake machine, watched: whatever is done to a frame, no TLB may be surprised by it.

use std::cell::RefCell;
use std::rc::Rc;

use machine_contract::TableMemory;
use machine_fake::{FakeFrames, FakeTranslation};
use model_addr::{FRAME_SIZE, Gfn, Mfn, NodeId, VmId};
use model_address_space::{Access, Frames, Translation};
use model_frame_table::{MAX_ORDER, MemoryMap, Owner, PoolCounts, Purpose};
use model_pmap::Why;
use model_stage2::Invalidation;

/// A VM's translation, which the test may look at while the VM's maps are locked.
#[derive(Clone, Debug, Default)]
pub struct Tables(pub Rc<RefCell<FakeTranslation>>);

impl Tables {
    /// The frames that the TLBs reach, each with its guest frame and whether it may be written.
    pub fn seen(&self) -> Vec<(Gfn, Mfn, bool)> {
        let tables = self.0.borrow();
        let pages = tables.mmu.leaves().flat_map(|leaf| {
            let (gfn, frame) = (leaf.ipa.frame(), leaf.pa.frame());
            let write = leaf.write;
            (0..leaf.size / FRAME_SIZE).map(move |n| (gfn.add(n), frame.add(n), write))
        });
        pages.collect()
    }

    /// The frame that the hardware of a node finds, where it allows the access.
    pub fn find(&self, node: NodeId, gfn: Gfn, write: bool) -> Option<Mfn> {
        let tables = self.0.borrow();
        let root = tables.root_on(node);
        let found = tables.mmu.translate_from(root, gfn.address()).ok()?;
        (found.leaf.write || !write).then(|| found.pa.frame())
    }

    /// Whether a TLB reaches one of these frames, to write it if that is asked.
    fn reaches(&self, first: Mfn, count: u64, write: bool) -> bool {
        let tables = self.0.borrow();
        let mut leaves = tables.mmu.leaves().filter(|leaf| leaf.write || !write);
        leaves.any(|leaf| {
            let start = leaf.pa.frame().0;
            start < first.0 + count && first.0 < start + leaf.size / FRAME_SIZE
        })
    }
}

impl TableMemory for Tables {
    fn allocate_table(&mut self) -> Option<Mfn> {
        self.0.borrow_mut().allocate_table()
    }
    fn free_table(&mut self, table: Mfn) {
        self.0.borrow_mut().free_table(table);
    }
    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.0.borrow().read(table, index)
    }
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.0.borrow_mut().write(table, index, value);
    }
}

impl Translation for Tables {
    fn invalidate(&mut self, what: Invalidation) {
        self.0.borrow_mut().invalidate(what);
    }
    fn use_root(&mut self, node: NodeId, root: Mfn) {
        self.0.borrow_mut().use_root(node, root);
    }
}

/// Frames that know all TLBs.
pub struct Machine {
    pub frames: FakeFrames,
    pub tlbs: Vec<(VmId, Tables)>,
    /// What was done with frames.
    pub steps: RefCell<Vec<&'static str>>,
    /// Who touched which sampled page, and whether to write it.
    pub touched: RefCell<Vec<(Mfn, Owner, NodeId, bool)>>,
}

impl Machine {
    fn note(&self, step: &'static str) {
        self.steps.borrow_mut().push(step);
    }

    fn assert_unseen(&self, first: Mfn, count: u64) {
        let is_seen = self
            .tlbs
            .iter()
            .any(|(_, tlb)| tlb.reaches(first, count, false));
        assert!(!is_seen, "{first}: a TLB reaches it");
    }

    fn assert_unwritten(&self, frame: Mfn) {
        let is_seen = self.tlbs.iter().any(|(_, tlb)| tlb.reaches(frame, 1, true));
        assert!(!is_seen, "{frame}: somebody may write it");
    }
}

impl Frames for Machine {
    fn map(&self) -> &MemoryMap<'_> {
        Frames::map(&self.frames)
    }
    fn allocate(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        self.note("allocate");
        self.frames.allocate(home, order, purpose)
    }
    fn allocate_local(&self, home: NodeId, order: u8, purpose: Purpose) -> Option<Mfn> {
        self.note("allocate_local");
        self.frames.allocate_local(home, order, purpose)
    }
    fn free(&self, first: Mfn, order: u8) {
        self.note("free");
        self.assert_unseen(first, 1 << order);
        Frames::free(&self.frames, first, order);
    }
    fn free_reserved(&self, first: Mfn, owner: Owner) {
        self.frames.free_reserved(first, owner);
    }
    fn zero(&self, first: Mfn, count: u64) {
        self.note("zero");
        self.assert_unseen(first, count);
        self.frames.zero(first, count);
    }
    fn drop_code(&self, first: Mfn, count: u64) {
        self.note("drop_code");
        self.assert_unseen(first, count);
        self.frames.drop_code(first, count);
    }
    fn allocate_for_break(&self, home: NodeId, owner: Owner) -> Option<Mfn> {
        self.note("allocate_for_break");
        self.frames.allocate_for_break(home, owner)
    }
    fn copy(&self, from: Mfn, to: Mfn) {
        self.note("copy");
        self.assert_unwritten(from);
        self.assert_unseen(to, 1);
        self.frames.copy(from, to);
    }
    fn touched(&self, frame: Mfn, page: Owner, (node, access): (NodeId, Access)) {
        let touch = (frame, page, node, access.writes());
        self.touched.borrow_mut().push(touch);
    }
    fn join(&self, frame: Mfn, user: Owner) -> Result<(), Why> {
        self.assert_unwritten(frame);
        self.frames.join(frame, user)
    }
    fn leave(&self, frame: Mfn, user: Owner) {
        self.note("leave");
        // Where the user is there twice, its other use goes on.
        let mut uses = 0;
        model_sharing::users(&self.frames, frame, |other| {
            uses += u32::from(other == user);
        });
        let tlbs = self.tlbs.iter().filter(|(vm, _)| *vm == user.vm);
        let nodes = || [NodeId(0), NodeId(1)].into_iter();
        let mut seen =
            tlbs.flat_map(|(_, tlb)| nodes().map(|node| tlb.find(node, user.gfn, false)));
        let is_seen = uses == 1 && seen.any(|seen| seen == Some(frame));
        assert!(!is_seen, "{frame}: its user still reaches it");
        self.frames.leave(frame, user);
    }
    fn leave_hidden(&self, frame: Mfn, user: Owner) {
        self.note("leave_hidden");
        self.leave(frame, user);
    }
    fn claim(&self, frame: Mfn, user: Owner) -> bool {
        self.note("claim");
        self.assert_unwritten(frame);
        self.frames.claim(frame, user)
    }
    fn publish(&self, frame: Mfn, user: Owner) -> bool {
        self.frames.publish(frame, user)
    }
    fn enlist(&self, frame: Mfn) {
        self.assert_unwritten(frame);
        self.frames.enlist(frame);
    }
    fn write(&self, first: Mfn, offset: u64, bytes: &[u8]) {
        self.assert_unseen(first, 1);
        Frames::write(&self.frames, first, offset, bytes);
    }
}

/// Each pool's free blocks, whether they are zeroed or not.
pub fn free_blocks(frames: &FakeFrames) -> Vec<PoolCounts> {
    let plain = |counts: PoolCounts| {
        let mut blocks = counts.blocks;
        let largest = usize::from(MAX_ORDER);
        blocks[largest] += std::mem::take(&mut blocks[largest + 1]);
        PoolCounts {
            free: counts.free,
            blocks,
            ..PoolCounts::default()
        }
    };
    frames.counts().into_iter().map(plain).collect()
}
